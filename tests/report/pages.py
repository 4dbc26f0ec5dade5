"""What a page holds, read by Python's own parser."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements, the text of each section by its id, tables as rows of texts, pictures; whether tags nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.ids, self.open = [], [], []
        self.attributes = []
        self.sections, self.tables, self.pictures = {}, [], []
        self.text = ""
        self._section = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        assert len(named) == len(attributes), f"an attribute is repeated in {tag}"
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if "id" in named:
            self.ids.append(named["id"])
        if tag == "section":
            self._section = named["id"]
            self.sections[self._section] = ""
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "svg":
            self.pictures.append({**named, "texts": []})
        if tag == "text":
            self.pictures[-1]["texts"].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes {self.open[-1]}"
        self.open.pop()
        if tag == "section":
            self._section = None

    def handle_data(self, data):
        if "style" in self.open:
            return
        if "svg" in self.open:
            if "text" in self.open:
                self.pictures[-1]["texts"][-1] += data
            return
        self.text += data
        if self._section is not None:
            self.sections[self._section] += data
        if self.open and {"td", "th"} & set(self.open) and self.tables:
            self.tables[-1][-1][-1] += data

"""What a document holds, read by Python's own parser."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Document(HTMLParser):
    """Elements, the text of each section by its id, tables as rows of texts, figures; raises if tags do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.ids, self.open = [], [], [], []
        self.sections, self.tables, self.figures = {}, [], []
        self.text = ""
        self._section = None
        self.feed(text)
        self.close()
        assert self.open == []

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
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "svg":
            self.figures.append({**named, "texts": []})
        elif tag == "text":
            self.figures[-1]["texts"].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "section":
            self._section = None

    def handle_data(self, data):
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        if "text" in self.open:
            self.figures[-1]["texts"][-1] += data
        if "style" in self.open or "svg" in self.open:
            return
        self.text += data
        if self._section is not None:
            self.sections[self._section] += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

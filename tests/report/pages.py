"""What a page holds, read by Python's own parser."""

import base64
from html.parser import HTMLParser
from xml.etree import ElementTree

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
        if tag == "img":
            self.pictures.append(named)
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
        self.text += data
        if self._section is not None:
            self.sections[self._section] += data
        if self.open and {"td", "th"} & set(self.open) and self.tables:
            self.tables[-1][-1][-1] += data


def svg_texts(picture):
    """The texts of a picture within the page, which must be well-formed."""
    kind, _, content = picture["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    root = ElementTree.fromstring(base64.b64decode(content))
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]

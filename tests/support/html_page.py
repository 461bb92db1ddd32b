"""A page, read back."""

from html.parser import HTMLParser

from tpu_components.core.base.terminal import visible

_VOID = {"meta", "img", "br", "rect"}


class Page(HTMLParser):
    """Every tag with its attributes; fails on tags that do not nest, and on characters that control a terminal."""

    def __init__(self, text):
        super().__init__()
        assert visible(text) == text
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]

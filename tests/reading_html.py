"""Reads the HTML page about a data set back: its texts, its elements, and what a browser makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

VOID = {"meta", "input", "link", "br", "img"}
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
]


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    text: str = ""  # of the element and all below it
    marked: list[str] = field(default_factory=list)  # texts of the <mark> below it

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()


class Reader(HTMLParser):
    """Every element in the order of its start tag. Fails where an element is not closed by its own tag."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open and self._open[-1].tag == tag, (tag, self._open[-1:])
        element = self._open.pop()
        if tag == "mark":
            for other in self._open:
                other.marked.append(element.text)

    def handle_data(self, data):
        for element in self._open:
            element.text += data

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        return [one for one in self.elements if one.tag == tag and (kind is None or kind in one.classes)]

    def one(self, identity: str) -> Element:
        (found,) = [one for one in self.elements if one.attributes.get("id") == identity]
        return found


@dataclass
class Browser:
    program: str
    folder: Path

    def run(self, page: Path, *flags: str) -> tuple[str, str]:
        """(the document after its scripts ran, what was said on the console) of a page."""
        words = [self.program, *FLAGS, f"--user-data-dir={self.folder / 'profile'}", *flags, page.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)

    def document(self, page: Path) -> tuple[str, str]:
        return self.run(page, "--dump-dom")

    def picture(self, page: Path, width: int, height: int) -> bytes:
        file = self.folder / "page.png"
        self.run(page, f"--screenshot={file}", f"--window-size={width},{height}")
        return file.read_bytes()

    def overflow(self, page: Path, width: int) -> int:
        """Pixels by which the page is wider than a window of `width`."""
        frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{escape(page.read_text("utf-8"))}"></iframe>'
        script = (
            "onload = () => { const root = frames[0].document.documentElement;"
            "document.title = root.scrollWidth - root.clientWidth }"
        )
        outer = self.folder / "frame.html"
        outer.write_text(f'<!doctype html><meta charset="utf-8">{frame}<script>{script}</script>', "utf-8")
        return int(re.search(r"<title>(\d+)</title>", self.document(outer)[0]).group(1))


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Browser:
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    program = next(found, None)
    if program is None:
        pytest.skip("no Chromium is installed")
    return Browser(program, tmp_path_factory.mktemp("browser"))

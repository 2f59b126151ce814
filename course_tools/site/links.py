"""A check of the site's links: every one leads somewhere, and no page asks another host for anything."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_TAG = re.compile(r"<(a|img|script|link|iframe|source|video|object|form)\b([^>]*)>")
_ADDRESS = re.compile(r'\b(?:href|src|data|srcset|action)="([^"]*)"')
_ID = re.compile(r'\b(?:id|name)="([^"]+)"')
_LOADED = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")


def problems(site: Path) -> list[str]:
    """Faults, one line for each: page and address."""
    found = (
        path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts
    )  # a theme's template is there
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in found}
    anchors = {name: set(_ID.findall(text)) for name, text in pages.items()}
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    wrong = [f"{name}: {each}" for name, text in pages.items() for each in _of_page(name, text, files, anchors)]
    sheets = [path for path in site.rglob("*.css") if _LOADED.search(path.read_text("utf-8"))]
    return wrong + [f"{path.relative_to(site).as_posix()} loads something from another host" for path in sheets]


def _of_page(name: str, text: str, files: set[str], anchors: dict[str, set[str]]) -> Iterator[str]:
    for words in re.findall(r'<span class="xref myst">(.*?)</span>', text):
        yield f"a link of which only the words are left: {words}"
    for tag, attributes in set(_TAG.findall(text)):
        for address in _ADDRESS.findall(attributes):
            if re.match(r"(?:[a-z]+:)?//", address):
                if tag != "a" and 'rel="canonical"' not in attributes:
                    yield f"<{tag}> asks another host: {address}"
            elif not re.match(r"(data|mailto|blob|javascript):", address):
                path, _, anchor = address.partition("#")
                path = path.partition("?")[0]
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(path))) if path else name
                if target not in files:
                    yield f"leads nowhere: {address}"
                elif anchor and target in anchors and unquote(anchor) not in anchors[target]:
                    yield f"no such place on the page: {address}"

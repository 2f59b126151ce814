"""Names of the library in a lesson's prose, such as `ranks.run` and `parallel/zero.py`: links to the reference."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from docutils import nodes
from sphinx import addnodes

from course_tools import TAUGHT

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?")
_FILE = re.compile(r"([a-z_]\w*(?:/\w+)*)(?:\.py|/)")
_PASSED_BY = (nodes.reference, nodes.title, addnodes.pending_xref)


@cache
def _package_of(part: str) -> str:
    """The package that has a part: `parallel` is `course_lib`'s, `ranks` is `course_kit`'s; empty if none has it."""
    return next((name for name in TAUGHT if find_spec(f"{name}.{part}")), "")


def imported(notebook: dict[str, Any]) -> dict[str, str]:
    """The names that a notebook's cells import from the library: name there → whole name."""
    found: dict[str, str] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.lstrip().startswith(("%", "!")):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in TAUGHT:
                found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def whole_name(text: str, imports: Mapping[str, str]) -> str:
    """The whole name in the library of a word in code style, as `course_lib.…`; empty if the word is no such name.

    Args:
        text: the word: a name, a call, or a file such as `parallel/zero.py`.
        imports: the page's imports; another name counts only if it begins like a part of the library.
    """
    if file := _FILE.fullmatch(text):
        return in_its_package(file[1].replace("/", "."))
    if not (name := _NAME.fullmatch(text)):
        return ""
    first, dot, rest = name[1].partition(".")
    if first in imports:
        return f"{imports[first]}{dot}{rest}"
    return in_its_package(name[1]) if dot else ""


def in_its_package(name: str) -> str:
    """The whole name: `ranks.run` is `course_kit.ranks.run`; empty if no package has such a part."""
    first = name.partition(".")[0]
    if first in TAUGHT:
        return name
    return f"{package}.{name}" if (package := _package_of(first)) else ""


def link_first_uses(doctree: nodes.Element, imports: Mapping[str, str], places: Mapping[str, str]) -> int:
    """Make the first use of each of the library's names on a page a link; return the number of links.

    Args:
        doctree: one page or a part of it, changed in place.
        imports: the names that the page's cells import from the library.
        places: whole name → the address in the reference, as seen from this page.
    """
    used: set[str] = set()
    for word in list(doctree.findall(nodes.literal)):
        place = places.get(_documented(whole_name(word.astext(), imports), places), "")
        if place and place not in used and not _is_passed_by(word):
            used.add(place)
            link = nodes.reference("", "", refuri=place, internal=True, classes=["library"])
            word.replace_self(link)
            link += word
    return len(used)


def _documented(name: str, places: Mapping[str, str]) -> str:
    """The name in the reference: that of the module which defines `name`, or else of the part that offers it."""
    if name in places or not name:
        return name
    try:
        thing = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return ""
    defined = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
    return defined if defined in places else name.rpartition(".")[0]


def _is_passed_by(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, _PASSED_BY):
            return True
    return False

"""The reference: a page for each part of the library and of its kit, made by Sphinx from the docstrings."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from course_tools.lessons import Lesson, all_lessons

DOCUMENTED = ("course_lib", "course_kit")
"""Packages that have a reference. Parts have a page each, by the part's name alone: no two share one."""

_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):\s*$")


def reference_pages(root: Path) -> dict[str, str]:
    """Path in the Sphinx source → reStructuredText, for the library at `root`; the index is among them."""
    parts = [part for package in DOCUMENTED for part in _parts(root / package)]
    pages = {f"api/{part.stem}.rst": _page(root, part) for part in parts}
    names = {part: f"{part.parent.name}.{part.stem}" for part in parts}
    lines = [f"- :doc:`{names[part]} <{part.stem}>`: {_first_line(part)}" for part in parts]
    listed = "\n".join(f"   {names[part]} <{part.stem}>" for part in parts)
    words = "`course_lib` is what lessons teach, `course_kit` what they use: part by part, with the sources."
    opened = [_opened(each) for each in all_lessons(root) if each.source.exists()]
    texts = [_title("The library"), words, "\n".join(lines), _title("Which lesson opens what", "-"), "\n".join(opened)]
    pages["api/index.rst"] = "\n\n".join((*texts, f".. toctree::\n   :hidden:\n\n{listed}\n"))
    return pages


def _opened(lesson: Lesson) -> str:
    """The files that a lesson's header names, each a link to the page of its part."""
    topic = lesson.name.partition("_")[2].replace("_", " ")
    files = ", ".join(f":doc:`{name} <{name.partition('/')[0].removesuffix('.py')}>`" for name in lesson.opens)
    return f"- {lesson.number}, {topic}: {files}"


def _parts(package: Path) -> list[Path]:
    """The rooms of a package: folders with modules, and modules at its top."""
    found = sorted(path for path in package.glob("[!_]*") if path.is_dir() or path.suffix == ".py")
    return [path for path in found if path.suffix == ".py" or (path / "__init__.py").exists()]


def rest_of(lines: list[str]) -> list[str]:
    """A docstring of this course as reStructuredText: examples are blocks of code, and stray marks are no markup."""
    done: list[str] = []
    for is_example, group in itertools.groupby(_marked(lines), key=lambda pair: pair[0]):
        text = "\n".join(line for _, line in group)
        above = _block_start(text) if is_example and text.startswith(" ") else []  # a dialogue with Python needs none
        done += above + (text if is_example else _escaped(text)).split("\n")
    return done


def _marked(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it belongs to an example: indented below an empty line, and in no section such as Args."""
    in_section = in_example = in_dialogue = False
    for before, line in itertools.pairwise(["", *lines]):
        if line and not line.startswith(" "):
            in_section, in_example = bool(_SECTION.match(line)), False
        elif line and not before.strip() and not in_section:
            in_example = True
        if line.startswith(">>> "):
            in_dialogue = True
        in_dialogue = in_dialogue and bool(line)
        yield in_example or in_dialogue, line


def _block_start(code: str) -> list[str]:
    """The directive above an example: some are tables and formulas."""
    try:
        ast.parse(textwrap.dedent(code))
    except SyntaxError:
        return [".. code-block:: text", ""]
    return [".. code-block:: python", ""]


def _escaped(text: str) -> str:
    """Prose in which only backticks mean something; a word may follow them without a space."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [part if i % 2 else re.sub(r"([*|_\\])", r"\\\1", part) for i, part in enumerate(parts)]
    return re.sub(r"(`[^`]*`)(?=[\w(\[])", r"\1\\ ", "".join(plain))


def _page(root: Path, part: Path) -> str:
    if part.suffix == ".py":
        name = f"{part.parent.name}.{part.stem}"
        return f"{_title(name)}\n\n{_automodule(name)}"
    inside = sorted(path for path in part.rglob("*.py") if not _is_private(path.relative_to(part)))
    names = [".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in inside]
    first, *rest = sorted(names, key=lambda name: (name.count(".") > 1, name))
    texts = [_title(first), f".. automodule:: {first}"]  # its names stand below, with the modules that hold them
    texts += [f"{_title(name.partition('.')[2], '-')}\n\n{_automodule(name)}" for name in rest]
    return "\n\n".join(texts)


def _is_private(path: Path) -> bool:
    return any(each.startswith("_") and each != "__init__" for each in path.with_suffix("").parts)


def _title(words: str, mark: str = "=") -> str:
    return f"{words}\n{mark * len(words)}"


def _automodule(name: str) -> str:
    return f".. automodule:: {name}\n   :members:\n   :ignore-module-all:\n"


def _first_line(part: Path) -> str:
    file = part if part.suffix == ".py" else part / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return _escaped(text.partition("\n\n")[0].replace("\n", " "))

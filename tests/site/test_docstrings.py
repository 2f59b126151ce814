"""Docstrings of modules become pages of the reference; where one is no page, `course site` writes nothing.

A docstring whose lines below the first are all indented loses its examples: their indentation is taken for margin.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from course_tools.site.reference import rest_of

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
ROOT = Path(__file__).parents[2]
MODULES = sorted(path for package in ("course_lib", "course_kit") for path in (ROOT / package).rglob("*.py"))
QUIET = {"report_level": 5, "halt_level": 5, "default_role": "code"}


def complaints(docstring: str) -> list[str]:
    """What docutils has to say, with a drawing whose columns would run together as one paragraph."""
    page = publish_doctree("\n".join(rest_of(docstring.splitlines())), settings_overrides=QUIET)
    said = [message.astext() for message in page.findall(nodes.system_message) if message["level"] >= 2]
    return said + [
        f"not set off: {text.astext()[:60]}" for text in page.findall(nodes.paragraph) if "    " in text.astext()
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_docstring_of_a_module_is_a_page(path: Path) -> None:
    assert complaints(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "") == []


@pytest.mark.parametrize("wrong", ["Words:\n  more\nless", "A drawing\n\none     two\nthree     four"])
def test_what_is_no_page_is_told(wrong: str) -> None:
    assert complaints(wrong)

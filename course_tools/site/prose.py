"""The parts of a lesson's prose for slides: questions, bold words, formulas; and prose as HTML, for the notes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from course_tools.site.maths import mathml

_HEADING = re.compile(r"^(#{1,4}) +(.+)\n*", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z(*`$\d])")
_FORMULA = re.compile(r"\$\$.+?\$\$", re.DOTALL)
_TOLD_BY_ITSELF = ("**your turn", "**before you run", "**the question", "**goal")
"""Bold words that belong to a page, and not to a slide."""
_MOST_POINTS = 4


def chunks_of(text: str) -> Iterator[tuple[str, str]]:
    """Markdown cut at its headings: each heading without its marks ("" above the first), and the text below it."""
    starts = [*_HEADING.finditer(text)]
    first = text[: starts[0].start()] if starts else text
    if first.strip():
        yield "", first.strip()
    for start, after in zip(starts, [*starts[1:], None]):
        yield start[2], text[start.end() : after.start() if after else len(text)].strip()


def points_of(text: str, *, questions: bool) -> list[str]:
    """A slide's Markdown: sentences with bold words, formulas with the lines that lead to them, questions if wanted."""
    found: list[str] = []
    before = ""
    for block in re.split(r"\n{2,}", re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)):
        if _FORMULA.search(block):
            leads = before.endswith((":", ",", "when", "carries", "is"))
            found = [each for each in found if each != before] + [f"{before}\n\n{block}" if leads else block]
        elif not re.match(r"\d+\. |[-|>] ?|```|    ", block):
            sentences = [" ".join(each.split()) for each in _SENTENCE.split(block)]
            before = sentences[-1]
            found += [each for each in sentences if _speaks(each, questions=questions)]
    return list(dict.fromkeys(each for each in found if each))[:_MOST_POINTS]


def _speaks(sentence: str, *, questions: bool) -> bool:
    if sentence.lower().startswith(_TOLD_BY_ITSELF):
        return False
    return "**" in sentence or (questions and sentence.rstrip(")").endswith("?"))


def as_html(text: str) -> str:
    """Markdown as HTML, formulas as MathML."""
    return _markdown().render(text)


@functools.cache
def _markdown() -> MarkdownIt:
    reader = MarkdownIt("commonmark").enable("table")
    return reader.use(dollarmath_plugin, renderer=lambda tex, how: mathml(tex, block=how["display_mode"]))

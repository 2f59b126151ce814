"""What the site is made of: pages from notebooks, links to the glossary, what is refused, and nothing hidden."""

from __future__ import annotations

import copy
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from docutils.core import publish_doctree
from docutils.nodes import reference
from PIL import Image

from course_tools.author.lab_source import read_lab, secret_blocks
from course_tools.labs import find_labs
from course_tools.lessons import find_lessons
from course_tools.site import front, glossary, links, notebook
from course_tools.site import reference as library
from course_tools.site.maths import mathml
from course_tools.site.sources import sources_of

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
ROOT = Path(__file__).parents[2]
LESSON = "07_data_parallelism"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return json.loads((ROOT / "lessons" / f"{LESSON}.ipynb").read_text("utf-8"))


def lines_of(stored: str) -> set[str]:
    """The lines of a notebook's cells, without their indentation."""
    return {line.strip() for cell in json.loads(stored)["cells"] for line in "".join(cell["source"]).splitlines()}


def test_no_page_and_no_download_of_a_lab_holds_a_line_that_is_hidden() -> None:
    labs = find_labs(ROOT)
    sources = sources_of(ROOT, [], labs, "https://github.com/a/b", library=False)
    for lab in labs:
        hidden = {line for block in secret_blocks(read_lab(lab)) for line in block}
        shown = [sources.texts[f"labs/{lab.name}.ipynb"], sources.assets[f"_files/{lab.name}.ipynb"].decode()]
        for text in shown:
            assert hidden and not hidden & lines_of(text), lab.name


def test_no_slide_holds_a_line_that_is_hidden_in_a_lab() -> None:
    sources = sources_of(ROOT, find_lessons(ROOT), [], "https://github.com/a/b", library=False)
    assert sorted(sources.slides.values()) == sorted(f"slides/{lesson.number}.html" for lesson in find_lessons(ROOT))
    of_lessons = {line.strip() for each in find_lessons(ROOT) for line in each.source.read_text("utf-8").splitlines()}
    hidden = {line for lab in find_labs(ROOT) for block in secret_blocks(read_lab(lab)) for line in block} - of_lessons
    for path in sources.slides.values():
        text = html.unescape(re.sub(r"<[^>]+>", "", sources.assets[path].decode()))
        assert len(hidden) > 1000 and not hidden & {line.strip() for line in text.splitlines()}, path


def test_each_figure_says_in_words_what_it_shows() -> None:
    for lesson in find_lessons(ROOT):
        text = json.dumps(notebook.page_of(json.loads(lesson.notebook.read_text("utf-8")), lesson.name).notebook)
        words = re.findall(r'<img [^>]*?alt=\\"(.*?)\\"', text)
        assert words and len(words) == text.count("<img "), lesson.name
        assert not [each for each in words if len(each) <= 20 or " " not in each], lesson.name
        assert len(re.findall(r'<a href=\\"(\S+)\\" title=[^>]+><img [^>]*?src=\\"\1\\"', text)) == len(words), (
            lesson.name
        )


def test_a_page_carries_its_widgets_once_and_nothing_for_jupyter(stored: dict[str, Any]) -> None:
    page = notebook.page_of(stored, LESSON)
    text = json.dumps(page.notebook)
    assert notebook.VIEW not in text and "google.colab" not in text and "colab-badge" not in text
    carried = json.loads(page.script.removeprefix("window.courseWidgets = ").removesuffix(";\n"))
    assert all(f'data-model=\\"{model}\\"' in text for model in carried["models"])
    assert len(carried["texts"]) == len(set(carried["texts"])) < 2 * len(carried["models"])
    assert text.count("course-figure") >= len(page.figures) > 0 and 'alt=\\"\\"' not in text


def test_no_page_tells_its_reader_to_start_an_explorer_that_lives_already() -> None:
    for lesson in find_lessons(ROOT):
        page = notebook.page_of(json.loads(lesson.notebook.read_text("utf-8")), lesson.name)
        words = " ".join("".join(cell["source"]) for cell in page.notebook["cells"] if cell["cell_type"] == "markdown")
        assert "nothing reacts" not in words and "the cell once" not in " ".join(words.split()), lesson.name
    told = "Grey. (If nothing reacts to your clicks, run the cell\nonce. The bars can be clicked.) Go on. "
    told += "(If nothing reacts, run the cell once.) Now."
    cell = {"cell_type": "markdown", "metadata": {}, "source": told}
    left = notebook.page_of({"metadata": {}, "cells": [cell]}, "x").notebook["cells"][0]["source"]
    assert left == "Grey. (The bars can be clicked.) Go on. Now."


def test_the_picture_moves_and_is_small() -> None:
    file = ROOT / "docs" / "course.gif"
    assert "](docs/course.gif)" in (ROOT / "README.md").read_text("utf-8")
    with Image.open(file) as picture:
        assert file.stat().st_size < 2_000_000 and getattr(picture, "n_frames", 1) > 3


def test_the_first_page_has_a_card_for_each_lesson_and_one_way_to_begin() -> None:
    lessons = find_lessons(ROOT, ["00", "07"])
    found = sources_of(ROOT, lessons, [], "https://github.com/a/b", library=False)
    page = found.texts["index.md"]
    assert page.count('class="front-card"') == 2 and page.count("front-start") == 1
    assert '<a href="lessons/00_how_this_course_measures.html">Start with lesson 00</a>' in page
    card = front.card_of("lessons/x", found.texts["lessons/07_data_parallelism.ipynb"])
    assert card.title == "07 · Data parallelism" and card.question == "how do replicas stay one model?"
    assert card.minutes.isdecimal() and f"{card.minutes} minutes" in page
    assert found.assets[front.STILL].startswith(b"\x89PNG") and "prefers-reduced-motion" in page
    assert "Bigger Than One GPU" in found.texts["readme.md"]


def test_a_notebook_without_outputs_is_refused(tmp_path: Path, stored: dict[str, Any]) -> None:
    empty = copy.deepcopy(stored)
    for cell in empty["cells"]:
        cell.pop("outputs", None)
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / f"{LESSON}.ipynb").write_text(json.dumps(empty), "utf-8")
    with pytest.raises(ValueError, match="07_data_parallelism.ipynb has no outputs; run `course build 07`"):
        sources_of(tmp_path, find_lessons(tmp_path, ["07"]), [], "https://github.com/a/b", library=False)


def test_the_first_use_of_a_word_is_a_link_and_no_other() -> None:
    terms = glossary.terms_of((ROOT / "GLOSSARY.md").read_text("utf-8"))
    page = publish_doctree(
        "All-reduce\n==========\n\nThe ``all-reduce`` of *one* rank, all-reduces, an all-reduce-like rank."
    )
    assert glossary.link_first_uses(page, terms, "../glossary.html") == 2
    found = [(link.astext(), link["refuri"]) for link in page.findall(reference)]
    assert found == [("rank", "../glossary.html#term-rank"), ("all-reduces", "../glossary.html#term-all-reduce")]
    assert "(term-all-reduce)=\n**All-reduce.**" in glossary.page_of((ROOT / "GLOSSARY.md").read_text("utf-8"))


def test_what_a_link_to_the_glossary_says_is_a_sentence_in_plain_characters() -> None:
    meanings = {term.words[0]: term.meaning for term in glossary.terms_of((ROOT / "GLOSSARY.md").read_text("utf-8"))}
    assert meanings["All-reduce"] == "A collective: each rank brings a tensor, all end with the sum."
    assert meanings["Message"] == "One send. Messages cost latency, bytes cost bandwidth."
    assert "10¹⁵ operations a second: 8.64 · 10¹⁹ FLOPs." in meanings["PF-day"]
    assert [said for said in meanings.values() if set(said) & set("\\$^*`{}") or len(said) < 25] == []


def test_dead_links_and_other_hosts_are_found(tmp_path: Path) -> None:
    good = '<h1 id="here">x</h1><a href="#here">x</a><a href="https://a.b/">x</a><img src="c.png">'
    good += '<a href="d/e.html#f">x</a>'
    for path, text in {"a.html": good, "c.png": "", "d/e.html": '<p id="f"></p>', "s.css": "p { color: red }"}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    assert links.problems(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="no.html"></a><a href="d/e.html#g"></a><script src="https://cdn.x/y.js"></script>'
    )
    (tmp_path / "s.css").write_text("@import url(https://fonts.x/y.css)")
    assert len(links.problems(tmp_path)) == 4
    (tmp_path / "s.css").unlink()
    (tmp_path / "a.html").write_text('<span class="xref myst">only words</span>')
    assert links.problems(tmp_path) == ["a.html: a link of which only the words are left: only words"]


def test_formulas_become_mathml_or_are_refused() -> None:
    assert "<mfrac>" in mathml(r"\frac43 + \dots") and 'display="block"' in mathml("x", block=True)
    with pytest.raises(ValueError, match="cannot be translated"):
        mathml(r"\unknowncommand{x}")


def test_the_reference_says_which_lesson_opens_what_as_the_headers_do() -> None:
    pages = library.reference_pages(ROOT)
    below = pages["api/index.rst"].partition("Which lesson opens what")[2]
    rows = re.findall(r"^- (\d\d), .+?: (.+)$", below, re.MULTILINE)
    files = {number: re.findall(r":doc:`(\S+) <(\w+)>`", row) for number, row in rows}
    assert {number: [name for name, _ in row] for number, row in files.items()} == {
        lesson.number: lesson.opens for lesson in find_lessons(ROOT)
    }
    assert {f"api/{page}.rst" for row in files.values() for _, page in row} <= set(pages)


def test_a_docstring_is_prose_with_code_in_blocks() -> None:
    lines = ["All `x`s, 2*n and rank_.", "", "    y = f(x)", "", "Args:", "    x: what.", "", ">>> f(1_0)", ""]
    text = "\n".join(library.rest_of(lines))
    assert r"`x`\ s, 2\*n and rank\_." in text and ".. code-block:: python\n\n    y = f(x)" in text
    assert "    x: what." in text and ">>> f(1_0)" in text

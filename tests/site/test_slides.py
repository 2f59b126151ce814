"""Slides of every lesson: all that is asked, shown, compared and to be written has one; what is collapsed has none."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from course_tools.lessons import all_lessons
from course_tools.site.lecture import slides_of, write_lecture
from course_tools.site.prose import points_of

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
ROOT = Path(__file__).parents[2]


def first_sitting(stored: dict[str, Any]) -> list[dict[str, Any]]:
    texts = ["".join(cell["source"]) for cell in stored["cells"]]
    return stored["cells"][: next(i for i, text in enumerate(texts) if "## Second sitting" in text)]


@pytest.mark.parametrize("lesson", all_lessons(ROOT), ids=lambda lesson: lesson.number)
def test_what_a_first_sitting_asks_shows_and_compares_is_on_a_slide_of_its_own(lesson: Any) -> None:
    stored = json.loads(lesson.notebook.read_text("utf-8"))
    cells = first_sitting(stored)
    slides, _ = slides_of(stored, lesson.name)
    shown = [json.dumps(output.get("data", {})) for cell in cells for output in cell.get("outputs", [])]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    prose = "\n".join("".join(c["source"]) for c in stored["cells"] if c["cell_type"] == "markdown")
    headings = len(re.findall(r"^##+ ", prose.partition("## Second sitting")[0], re.MULTILINE))
    guesses = sum("widget-view" in each and "image/png" not in each for each in shown)
    kinds = Counter(slide.kind for slide in slides)
    assert kinds["section"] == headings and kinds["ask"] == guesses
    assert kinds["table"] == sum("<table" in each for each in shown)
    assert kinds["figure"] + kinds["explorer"] == sum("image/png" in each for each in shown)
    assert kinds["turn"] == sum(len(re.findall(r"^@your_turn", each, re.M)) for each in code)
    told = "".join(note for slide in slides for note in slide.notes)
    on_slides = "".join(slide.body for slide in slides)
    assert "One solution:" in told and "One solution" not in on_slides and "google.colab" not in on_slides + told
    assert not re.search(r"\$\$|<p>#|\*\*", re.sub(r"<pre>.*?</pre>", "", on_slides, flags=re.S))


def test_a_lecture_is_one_file_that_asks_nobody_for_anything(tmp_path: Path) -> None:
    (lesson,) = (each for each in all_lessons(ROOT) if each.number == "06")
    file, slides = write_lecture(lesson, tmp_path / "new")
    text = file.read_text("utf-8")
    assert text.count("<section ") == slides > 20 and list((tmp_path / "new").iterdir()) == [file]
    assert not re.search(r"""<(?:script|img|link)[^>]*(?:src|href)="(?!data:)|url\((?!["']?data:)|@import""", text)
    assert "Second sitting" not in text


def test_a_slide_takes_questions_bold_sentences_and_formulas_with_what_leads_to_them() -> None:
    text = "Long prose. Who **pays** here? All wait. Each carries\n\n$$n$$\n\n1. **Not** a list.\n\nWhy?"
    assert points_of(text, questions=True) == ["Who **pays** here?", "Each carries\n\n$$n$$", "Why?"]
    assert points_of(text, questions=False) == ["Who **pays** here?", "Each carries\n\n$$n$$"]
    assert points_of("**Your turn.** Write it.", questions=True) == []

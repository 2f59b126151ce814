"""What papers print about their corpora, and how fast published models read; `data.json` holds each figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_pages.lesson14.published import PUBLISHED
from course_pages.lesson15.corpora import GPT3, MASSIVE_TEXT, MT_NLG, Source

from .rows import rows_of

READS = ("lessons/src/15_*.py",)
ROWS = rows_of(__file__)
PAGE = (Path(__file__).parents[2] / "lessons/src/15_feeding_the_beast.py").read_text("utf-8")
MISFITS = {"gpt3 WebText2"}
"""Printed epochs that no numbers fit which round to the printed share and tokens."""


@pytest.mark.parametrize("name", [name for name in ROWS if "percent" in ROWS[name]["inputs"]])
def test_epochs_follow_from_shares_and_tokens(name: str) -> None:
    """Within what rounding explains: half of a last digit of the epochs, of the share, of the tokens."""
    row, paper = ROWS[name], name.partition(" ")[0]
    given, last_digit = row["inputs"], {"gpt3": 0.5, "mt-nlg": 0.05}[paper]
    due = given["percent"] / 100 * given["read_e9"] / given["tokens_e9"]
    rounding = row["tolerance"] + due * last_digit * (1 / given["percent"] + 1 / given["tokens_e9"])
    assert (abs(due - row["value"]) <= rounding) == (name not in MISFITS)


def test_two_rows_of_mt_nlg_do_not_fit_the_tokens_that_its_paper_names() -> None:
    """The page says so, and names both. Nor is it all of the corpus's 339e9 that was read."""
    far = {}
    for read_e9 in (270, 275, 339):
        due = {name: source.percent / 100 * read_e9 / source.tokens_e9 for name, source in MT_NLG.items()}
        rounding = {n: 0.05 + due[n] * (0.05 / each.percent + 0.05 / each.tokens_e9) for n, each in MT_NLG.items()}
        far[read_e9] = [n for n, each in MT_NLG.items() if abs(due[n] - each.epochs) > rounding[n]]
    assert far[270] == ["OpenWebText2", "Stack Exchange"] and far[275] == [] and len(far[339]) > 8
    assert all(name in PAGE for name in far[270])


def test_lesson_14_has_the_same_mixtures_whose_weights_do_not_add_up() -> None:
    for ours, table, percent in (("gpt3", GPT3, 101), ("mt_nlg", MT_NLG, 100.1)):
        rows = [(row["tokens"] / 1e9, 100 * row["weight"], row["epochs"]) for row in PUBLISHED[ours].values()]
        assert sorted(rows) == [pytest.approx(tuple(source)) for source in sorted(table.values())]
        assert sum(source.percent for source in table.values()) == pytest.approx(percent)
    assert sum(source.tokens_e9 for source in MT_NLG.values()) == pytest.approx(339, rel=0.002)
    wikipedia = PUBLISHED["massivetext"]["Wikipedia"]
    assert wikipedia["bytes"] / wikipedia["tokens"] < 0.3  # and no token is a quarter of a byte


def test_the_parts_of_massivetext_add_up_to_what_is_said_of_the_whole() -> None:
    terabytes, tokens_e9 = (sum(column) for column in zip(*MASSIVE_TEXT.values()))
    whole, share = (ROWS[f"total of massivetext, {what}"] for what in ("terabytes", "share of 300e9 tokens"))
    assert terabytes == pytest.approx(whole["value"], abs=whole["tolerance"])
    assert f"{whole['value']} TB, or {tokens_e9:,d} billion tokens" in PAGE
    assert 100 * share["inputs"]["read_e9"] / tokens_e9 == pytest.approx(share["value"], abs=share["tolerance"])


def test_the_page_has_the_published_rows() -> None:
    for paper, table in {"gpt3": GPT3, "mt-nlg": MT_NLG}.items():
        for name, source in table.items():
            row = ROWS[f"{paper} {name}"]
            assert Source(row["inputs"]["tokens_e9"], row["inputs"]["percent"], row["value"]) == source
    for name, (terabytes, tokens_e9) in MASSIVE_TEXT.items():
        row = ROWS[f"massivetext {name}"]
        assert (row["inputs"]["terabytes"], row["value"]) == (terabytes, tokens_e9)
    words = {"mosaicml mpt-7b h100": "10_643", "mosaicml mpt-125m a100": "165_681"}
    words |= {"jft-300m": "more than 375 million labels", "common crawl archive": "about 75 TB"}
    for name, said in words.items():
        assert said in PAGE and str(ROWS[name]["value"]).startswith("".join(filter(str.isdigit, said)))

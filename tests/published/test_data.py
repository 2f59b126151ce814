"""What papers print about their corpora, and how fast published models read.

`data.json` holds each figure; see `rows.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from course_pages.lesson15.corpora import GPT3, MASSIVE_TEXT, MT_NLG, Source

from .rows import rows_of

ROWS = rows_of(__file__)
PAGE = (Path(__file__).parents[2] / "lessons/src/15_feeding_the_beast.py").read_text("utf-8")
MISFITS = {"gpt3 WebText2"}
"""Printed epochs that no numbers fit which round to the printed share and tokens."""


def epochs(tokens_e9: float, percent: float, read_e9: float) -> float:
    return percent / 100 * read_e9 / tokens_e9


@pytest.mark.parametrize("name", [name for name in ROWS if "percent" in ROWS[name]["inputs"]])
def test_epochs_follow_from_shares_and_tokens(name: str) -> None:
    """Within what rounding explains: half of a last digit of the epochs, of the share, of the tokens."""
    row, paper = ROWS[name], name.partition(" ")[0]
    given, last_digit = row["inputs"], {"gpt3": 0.5, "mt-nlg": 0.05}[paper]
    due = epochs(**given)
    rounding = row["tolerance"] + due * last_digit * (1 / given["percent"] + 1 / given["tokens_e9"])
    assert (abs(due - row["value"]) <= rounding) == (name not in MISFITS)


def test_two_rows_of_mt_nlg_do_not_fit_the_tokens_that_its_paper_names() -> None:
    """The page says so, and names both."""
    for read_e9, misfits in {270: ["OpenWebText2", "Stack Exchange"], 275: []}.items():
        dues = {name: epochs(source.tokens_e9, source.percent, read_e9) for name, source in MT_NLG.items()}
        rounding = {name: 0.05 / each.percent + 0.05 / each.tokens_e9 for name, each in MT_NLG.items()}
        far = [n for n, due in dues.items() if abs(due - MT_NLG[n].epochs) > 0.05 + due * rounding[n]]
        assert far == misfits
        assert all(name in PAGE for name in misfits)


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
        assert (ROWS[f"massivetext {name}"]["inputs"]["terabytes"], ROWS[f"massivetext {name}"]["value"]) == (
            terabytes,
            tokens_e9,
        )
    words = {"mosaicml mpt-7b h100": "10_643", "mosaicml mpt-125m a100": "165_681"}
    words |= {"jft-300m": "more than 375 million labels", "common crawl archive": "about 75 TB"}
    for name, said in words.items():
        assert said in PAGE and str(ROWS[name]["value"]).startswith("".join(filter(str.isdigit, said)))

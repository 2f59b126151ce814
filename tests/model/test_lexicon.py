"""Zipf's words: what they are, who reads them best, and how much that reader must lose."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from course_lib.model.lexicon import Lexicon
from tests.predict.refused import refused


def test_words_are_different_and_short_ones_come_often() -> None:
    words = Lexicon(words=2000).words
    assert len(set(words)) == 2000 and all(word.endswith(b" ") and word[:-1].isalpha() for word in words)
    lengths = [len(word) for word in words]
    assert lengths == sorted(lengths) and lengths[0] == 3 and lengths[-1] == 3 + int(math.log2(2001) / 3.2)
    assert Lexicon(words=2000).words == words != Lexicon(seed=1, words=2000).words


def test_ranks_follow_zipf() -> None:
    lexicon = Lexicon(words=50, exponent=1.2)
    text = b"".join(bytes(row.tolist()) for row in lexicon.batch(0, 0, 0, 40, 4000)[0])
    counts, total = Counter(text.split()), len(text.split())
    for rank in (1, 2, 5, 20):
        due = lexicon.probabilities[rank - 1]
        assert due / lexicon.probabilities[0] == pytest.approx(rank**-1.2)
        seen = counts[lexicon.words[rank - 1].strip()] / total
        assert abs(seen - due) < 5 * math.sqrt(due / total) + 1e-3  # windows cut a word at their end


def test_a_window_begins_with_a_space_and_is_cut() -> None:
    windows = [bytes(row.tolist()) for row in Lexicon(words=100).batch(3, 4, 0, 8, 20)[0]]
    assert all(window[0] == ord(" ") and len(window) == 20 for window in windows)
    first, second = (Lexicon(words=100).batch(3, 4, rank, 4, 20)[0] for rank in (0, 1))
    assert [bytes(row.tolist()) for row in (*first, *second)] == windows


def test_the_ideal_reader_by_hand() -> None:
    """Three words: each byte costs the log of the share of words that go on with it."""
    lexicon = Lexicon(words=3, exponent=1.0)
    lexicon.words, lexicon.probabilities = [b"aa ", b"ab ", b"ba "], [0.5, 0.3, 0.2]
    lexicon._mass = {b"": 1.0, b"a": 0.8, b"b": 0.2, b"aa": 0.5, b"ab": 0.3, b"ba": 0.2}
    lexicon._mass |= {b"aa ": 0.5, b"ab ": 0.3, b"ba ": 0.2}
    due = [-math.log(0.8), -math.log(0.3 / 0.8), 0.0, -math.log(0.2), 0.0]
    assert lexicon.ideal_nats(b" ab ba") == pytest.approx(due)


def test_what_a_word_costs_is_its_information_and_on_average_the_entropy() -> None:
    lexicon = Lexicon(words=500)
    for rank in (0, 7, 499):
        nats = sum(lexicon.ideal_nats(b" " + lexicon.words[rank]))
        assert nats == pytest.approx(-math.log(lexicon.probabilities[rank]))
    (row,), _ = lexicon.batch(0, 0, 0, 1, 60_000)
    nats = lexicon.ideal_nats(bytes(row.tolist()))
    assert sum(nats) / len(nats) == pytest.approx(lexicon.entropy_per_byte, rel=0.02)


def test_no_other_reader_loses_less() -> None:
    """One that takes all words for equally frequent, and one that knows letters' frequencies alone."""
    lexicon, even = Lexicon(words=300), Lexicon(words=300, exponent=1e-9)
    (row,), _ = lexicon.batch(0, 0, 0, 1, 20_000)
    text = bytes(row.tolist())
    ideal = sum(lexicon.ideal_nats(text)) / (len(text) - 1)
    counts = Counter(text)
    letters = -sum(count / len(text) * math.log(count / len(text)) for count in counts.values())
    assert ideal < sum(even.ideal_nats(text)) / (len(text) - 1) < letters


test_what_cannot_be_read_or_made_is_refused = refused(
    (lambda: Lexicon(words=20).ideal_nats(b"pe "), "not with a space"),
    (lambda: Lexicon(words=20).ideal_nats(b" PE"), "no word of this lexicon"),
    *(
        (lambda wrong=wrong: Lexicon(**wrong), "give 1 to a million words")  # type: ignore[arg-type]
        for wrong in ({"words": 0}, {"words": 10**7}, {"exponent": 0.0})
    ),
)

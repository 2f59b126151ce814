"""The numbers of the accumulation explorer, its limits and its picture, all without a browser."""

from __future__ import annotations

import pytest

from course_lib.predict import Setup, peak
from course_pages.lesson05.explorer import GPT2, SIZES, accumulation_table, batch_splits


def test_splits_are_the_librarys_peaks():
    splits = batch_splits(8, "sgd")
    whole = Setup(GPT2, 8, optimizer="sgd")
    assert splits == {micro: peak(whole.with_(micro_batch=micro)) for micro in (1, 2, 4, 8)}


def test_a_smaller_piece_never_holds_more_and_the_batch_hardly_matters():
    small, large = ([each.total for each in batch_splits(size).values()] for size in (64, 512))
    assert large == sorted(large)
    for a, b in zip(small[:-1], large):  # the last one of `small` is a plain step, whose gradients come late
        assert b - a == 16 * 1024 * (512 - 64)  # the tokens and targets that wait


def test_the_table_holds_every_choice():
    table = accumulation_table()["peaks"]
    assert set(table) == {"sgd", "momentum", "adam"}
    for optimizer, batches in table.items():
        assert list(batches) == [str(size) for size in SIZES]
        account = peak(Setup(GPT2, 64, micro_batch=4, optimizer=optimizer))  # type: ignore[arg-type]
        assert batches["64"][2] == [int(nbytes) for nbytes in account.values()]


def test_a_batch_that_is_not_offered_is_not_split():
    with pytest.raises(ValueError, match="global_batch=3 given"):
        batch_splits(3)

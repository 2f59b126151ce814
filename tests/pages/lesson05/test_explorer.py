"""The numbers of the accumulation explorer, its limits and its picture, all without a browser."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import traitlets

from course_kit.notebook import picture as style
from course_lib.predict import Setup, peak
from course_pages.lesson05.explorer import GPT2, SIZES, AccumulationExplorer, accumulation_table, batch_splits


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


@pytest.mark.parametrize(
    "wrong", [{"global_batch": 3}, {"micro_batch": 1024}, {"micro_batch": 8, "global_batch": 4}, {"gpu": "abacus"}]
)
def test_what_is_not_to_be_chosen_is_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}: choose one of"):
        AccumulationExplorer(**wrong)
    with pytest.raises(ValueError, match="global_batch=3 given"):
        batch_splits(3)


def test_a_wrong_number_later_is_refused_too():
    with pytest.raises(traitlets.TraitError, match="micro_batch"):
        AccumulationExplorer().micro_batch = 5


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch):
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = AccumulationExplorer(global_batch=4, micro_batch=2)
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert sent[0].data["image/png"]
    assert "a step of 4 sequences, cut into pieces. 4 × 1: 3.6 GiB" in sent[0].metadata["image/png"]["alt"]
    assert "cost only activations" in sent[1].data["text/html"]

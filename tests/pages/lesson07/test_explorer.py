"""The bucket explorer's numbers, its limits and its picture, all without a browser."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace

import pytest
import traitlets

from course_kit.notebook import picture as style
from course_kit.units import Seconds
from course_lib import predict
from course_lib.predict import Setup
from course_pages.lesson07.explorer import BUCKETS, FLOPS_PER_S, NETWORKS, WORLDS, BucketExplorer, bucket_table


def test_the_explorer_shows_what_the_library_predicts() -> None:
    explorer = BucketExplorer(
        network="GPT-2 small", gb_per_s=12.5, bucket=20, world=4, tokens=10, alpha_us=3, overlapped=False
    )
    ready = predict.gradients_ready(Setup(NETWORKS["GPT-2 small"], 1, 1024, precision="mixed"), FLOPS_PER_S)
    assert explorer.result() == predict.overlap(ready, 2**20, 16, explorer.link, overlapped=False)
    assert (explorer.link.alpha, explorer.link.bytes_per_s) == (pytest.approx(3e-6), pytest.approx(12.5e9))
    assert len(explorer.result(33).departures) == 1


def test_a_bucket_may_be_too_small_and_too_large() -> None:
    """GPT-2 XL on 8 ranks with 50 GB/s: 1.6 billion gradients of 2 bytes, 1.75 times 3.1 GB over the link."""
    explorer = BucketExplorer()
    small, best, large = (explorer.result(bucket) for bucket in (10, 25, 33))
    assert small.end_s > 1.3 * best.end_s < large.end_s
    assert large.waiting_s == pytest.approx(1.75 * 2 * 1_557_611_200 / 50e9 + 14 * 10e-6)
    assert all(each.start_s >= large.backward_s for each in large.departures)
    assert small.messages == 14 * len(small.departures)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_holds_what_the_predictions_are_made_of(name: str) -> None:
    network = bucket_table()["networks"][name]
    gradients = predict.gradients_ready(Setup(NETWORKS[name], 2**20, 1, precision="mixed"), FLOPS_PER_S)
    assert network["ready_s"] == pytest.approx([each.ready_s for each in gradients])
    assert network["bytes"][-1] == sum(each.n_bytes for each in gradients)
    for size in (10, 22, 25, 33):
        closed = network["closed"][BUCKETS.index(size)]
        departures = predict.overlap(gradients, 2**size, 8, predict.Link(Seconds(0), 0.0)).departures
        assert [network["bytes"][last] for last in closed] == list(accumulate(int(each.n_bytes) for each in departures))
        assert [network["ready_s"][last] for last in closed] == pytest.approx([each.full_s for each in departures])


def test_the_table_holds_the_ring() -> None:
    for world, (messages, share) in zip(WORLDS, bucket_table()["rings"], strict=True):
        formula = predict.all_reduce(2**30, 2**world)
        assert (messages, share * 2**30) == (formula.messages, formula.bytes)


@pytest.mark.parametrize(("wrong", "offered"), [({"network": "GPT-9"}, "GPT-2 small"), ({"gb_per_s": 7}, "1.25, 3")])
def test_an_unknown_choice_is_refused(wrong, offered) -> None:
    with pytest.raises(ValueError, match=f"choose one of {offered}"):
        BucketExplorer(**wrong)


@pytest.mark.parametrize("name", ["bucket", "world", "tokens", "alpha_us"])
def test_numbers_outside_of_the_sliders_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=200"):
        BucketExplorer(None, **{name: 200})
    with pytest.raises(traitlets.TraitError, match=name):
        setattr(BucketExplorer(), name, -1)


def test_show_sends_the_widget_with_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[SimpleNamespace] = []
    monkeypatch.setattr(style, "display", lambda data, **rest: sent.append(SimpleNamespace(data=data, **rest)))
    explorer = BucketExplorer()
    explorer.show()
    assert sent[0].data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert sent[0].data["image/png"]
    assert "GPT-2 XL on 8 ranks, buckets of 32 MiB" in sent[0].metadata["image/png"]["alt"]
    assert "each bar on the link is a bucket" in sent[1].data["text/html"]

"""Recompute as predicted: chains by hand and as they ran, the papers' rule, swap by division; a GPT: `test_meter`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import MIXTRAL_8X7B
from course_lib.predict import Setup
from course_lib.predict.chain import Chain
from course_lib.train.recompute import RecomputedLayers
from tests.predict.refused import refused

UNIT = partial(Chain, boundary_bytes=1, saved_bytes=1)


def test_the_film_of_two_segments_by_hand():
    film = Chain(3, boundary_bytes=10, saved_bytes=1).film(every=2)
    assert [(f.phase, f.layer, f.boundaries, f.inside, int(f.held), f.start) for f in film] == [
        ("forward", 0, 1, 0, 10, 0), ("forward", 1, 1, 0, 10, 1), ("forward", 2, 2, 0, 20, 2),
        ("recompute", 2, 2, 1, 21, 3), ("backward", 2, 2, 1, 21, 4),
        ("recompute", 0, 1, 1, 11, 6), ("recompute", 1, 1, 2, 12, 7), ("backward", 1, 1, 2, 12, 8),
        ("backward", 0, 1, 1, 11, 10),
    ]  # fmt: skip
    assert film[-1].start + film[-1].duration == 4 * 3


def test_a_plain_step_is_a_triangle():
    film = UNIT(4).film(None)
    assert [int(f.held) for f in film] == [1, 2, 3, 4, 4, 3, 2, 1]
    assert UNIT(4).held(None) == UNIT(4).peak(None) == 4


@pytest.mark.parametrize("layers", [1, 7, 16, 48])
@pytest.mark.parametrize("shared", [False, True])
def test_where_k_divides_n_the_peak_is_the_formula(layers, shared):
    chain = Chain(layers, boundary_bytes=3, saved_bytes=13, keeps_input=shared)
    for every in (k for k in range(1, layers + 1) if layers % k == 0):
        assert chain.peak(every) == layers // every * 3 + every * 13 - 3 * shared
        assert chain.held(every) == layers // every * 3


def test_a_short_last_segment_needs_less():
    assert UNIT(16).peak(5) == 8  # 4 boundaries and 1 layer, then 3 and 5; not 4 and 5
    assert [int(UNIT(16).peak(k)) for k in (3, 4, 6, 7)] == [8, 8, 8, 9]


@pytest.mark.parametrize(("layers", "saved", "best"), [(16, 1, 3), (64, 4, 4), (400, 1, 17), (4, 20, 1)])
def test_the_best_k_is_near_the_root(layers, saved, best):
    chain = Chain(layers, boundary_bytes=1, saved_bytes=saved)
    root = max(1, round((layers / saved) ** 0.5))
    assert min(range(1, layers + 1), key=chain.peak) == best
    assert chain.peak(best) <= chain.peak(root) <= chain.peak(best) + saved


class Layer(nn.Module):
    """Saves one tensor of the size of its input, which it does not save."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(x))


@pytest.mark.parametrize(("layers", "every"), [(16, 1), (16, 4), (16, 5), (7, 3), (7, 7)])
def test_a_chain_that_runs(layers, every):
    chain, peak, flops = ran(layers, every)
    assert peak == chain.peak(every)
    runs = sum(frame.duration for frame in chain.film(every)) - 1  # the first input needs no gradient
    assert runs == 4 * layers - 1 and flops == runs * 2 * 32 * 8 * 8


def run(stack: RecomputedLayers, x: Tensor) -> Tensor:
    for segment in stack:
        x = segment(x)
    return x


def ran(layers: int, every: int) -> tuple[Chain, int, int]:
    """The chain, the peak of its activations, and its FLOPs, from a step that ran."""
    stack, x = RecomputedLayers([Layer(8) for _ in range(layers)], every), torch.randn(32, 8)
    x_bytes = 32 * 8 * 4
    chain = Chain(layers, x_bytes, x_bytes)
    with measure.memory(stack, inputs=x) as record:
        run(stack, x).sum().backward()
    with measure.flops() as counted:
        run(stack, x).sum().backward()
    return chain, int(record.timeline["activations"].max()), counted.total


SMALL = GPTConfig(layers=3, width=16, heads=2, vocab_size=256, context=32)


GPT3 = Setup(zoo.GPT3_175B, seq=2048, precision="mixed")


def test_all_layers_keep_what_one_keeps_for_each():
    for way in ("none", "selective", "full"):
        setup = GPT3.with_(recompute=way)
        assert 96 * predict.activations_paper(setup, layers=1) == predict.activations_paper(setup)
        assert predict.activations_paper(setup, layers=0) == 0


def test_sequence_parallel_splits_all_of_it():
    whole = predict.activations_paper(GPT3)
    assert predict.activations_paper(GPT3.with_(tensor=8, sequence_parallel=True)) == whole / 8
    assert whole / 8 < predict.activations_paper(GPT3.with_(tensor=8)) < whole


def test_ranks_that_share_the_batch_keep_their_own_rows():
    assert predict.activations_paper(GPT3.with_(batch_size=64, data=64)) == predict.activations_paper(GPT3)
    assert predict.activations_paper(GPT3.with_(batch_size=64, micro_batch=1)) == predict.activations_paper(GPT3)


def test_swap_is_faster_from_the_break_even_on():
    even = predict.swap_break_even(flops_per_s=100, link_bytes_per_s=10)
    assert even == 20
    there_and_back_s, again_s = 2 * 1000 / 10, even * 1000 / 100
    assert there_and_back_s == again_s


test_mistakes_are_explained = refused(
    (lambda: Chain(0, 1, 1), "at least 1 layer"),
    (lambda: Chain(1, -1, 1), "no negative size"),
    (lambda: Chain(1, 2, 1, keeps_input=True), "at least as many bytes"),
    (lambda: UNIT(4).film(0), "at least 1 layer"),
    (lambda: predict.activations(Setup(replace(SMALL, attention="fused"), recompute="selective")), "no scores"),
    (
        lambda: predict.activations(Setup(SMALL, device="cuda", recompute="selective")),
        "device='cuda'.*activations_paper has the rule",
    ),
    (lambda: predict.activations_paper(GPT3.with_(precision="fp32")), "precision='fp32'"),
    (lambda: predict.activations_paper(GPT3.with_(recompute="full", recompute_every=2)), "recompute_every=2"),
    (lambda: predict.activations_paper(Setup(MIXTRAL_8X7B, precision="mixed")), "Mixtral 8x7B has experts"),
    (lambda: predict.activations_paper(Setup(replace(SMALL, ffn_width=6), precision="mixed")), "an MLP of 6"),
    (lambda: predict.activations_paper(GPT3, layers=-1), "layers=-1"),
    (lambda: predict.swap_break_even(1, -1), "must be positive"),
)

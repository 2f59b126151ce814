"""Pictures of the pages: each is told in words, and what cannot be drawn is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from course_kit.accounts import MemoryAccount, TrafficAccount
from course_kit.units import Bytes, Seconds
from course_lib.model import hardware
from course_lib.model.experts import ExpertConfig, find_places
from course_lib.numerics import BF16, FORMATS, FP8_E4M3FN, FP8_E5M2, FP16
from course_lib.parallel.context import work
from course_lib.parallel.mesh import Mesh
from course_lib.pipeline.schedule import simulate, zb_v
from course_lib.predict.allocator import CachingAllocator
from course_lib.predict.chain import Chain
from course_lib.predict.laws import ScalingLaw
from course_lib.predict.traffic import Link
from course_lib.train.gradients import GradientSizes
from course_pages.lesson01 import pictures as lesson01
from course_pages.lesson02 import pictures as lesson02
from course_pages.lesson03 import pictures as lesson03
from course_pages.lesson04 import pictures as lesson04
from course_pages.lesson05.pictures import Ladder
from course_pages.lesson06 import costs
from course_pages.lesson07 import pictures as lesson07
from course_pages.lesson08 import pictures as lesson08
from course_pages.lesson08.explorer import stops
from course_pages.lesson09.pictures import pipeline_charts
from course_pages.lesson10 import pictures as lesson10
from course_pages.lesson11 import pictures as lesson11
from course_pages.lesson12.pictures import groups_along
from course_pages.lesson13 import pictures as lesson13
from course_pages.lesson13.trials import Run
from course_pages.lesson14 import pictures as lesson14
from course_pages.lesson16 import pictures as lesson16
from course_pages.shared import block_formats, losses, memory
from course_pages.shared.who_sends import matrix, who_sends_whom

MIB = 2**20
PEAKS = {k: Chain(6, boundary_bytes=MIB, saved_bytes=2 * MIB).peak(k) for k in range(1, 7)}
HELD = {1: Bytes(4 * MIB), 2: Bytes(2 * MIB), 3: Bytes(3 * MIB)}
ALIVE = {1: Bytes(9 * MIB), 2: Bytes(7 * MIB), 3: Bytes(5 * MIB)}
COSTS = [(MIB, 3 * MIB, 2_000_000), (2 * MIB, 2 * MIB, 5_000_000), (MIB, 6 * MIB, 1_000_000)]
SIZES = GradientSizes([torch.tensor([2.0**-30, 2.0**-20, 2.0**-20, 1.0, 2.0**20])])
FLOW = {("weights", "forward"): 2, ("backward", "gradients"): 2, ("states", "update"): 12, ("update", "weights"): 3}
STATES = {"weights": 2, "gradients": 2, "states": 12}
WANTED = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 0]])
EXPERTS = ExpertConfig(width=8, hidden=16, experts=4)
SEEDS = {"alone": [[3.0, 2.0], [3.0, 2.5]], "balanced": [[3.0, 1.0]]}
RUNS = {"nothing": [Run([3.0, 2.5], [], [], [])], "experts": [Run([3.0, 2.0], [0.9] + [0.5] * 10, [0.8, 0.3], [])]}
LAW = ScalingLaw(1.4, 9.0, 120.0, 0.37, 0.44)
OVER = [1, 2, 4]
GROWTH = {"training": [Bytes(n * MIB) for n in OVER], "inference": [Bytes(MIB)] * 3}
FAST = Link(Seconds(1e-6), 1e-11)

PICTURES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (lesson01.number_lines, (), ""),
    (lesson01.range_and_precision, (), "fp16: 6e-08 to 6.55e+04"),
    (lesson01.relative_error, ([FP16, BF16, FP8_E4M3FN, FP8_E5M2],), ""),
    (lesson01.running_values, ({"fp32": [0.0, 1.0]},), ""),
    (lesson01.bits_against_error, ({fmt.name: (fmt.bits, 6.0 * fmt.bits) for fmt in FORMATS[3:]},), ""),
    (block_formats.block_on_grid, ([1.0, 0.1], [1.0, 0.0], [0, 1]), ""),
    (block_formats.bit_layout, (4, 2), "byte 0: 1.3 1.2 1.1 1.0 0.3 0.2 0.1 0.0"),
    (block_formats.errors_by_largest, ([4, 8], {"a": [0.1, 0.2], "b": [0.2, 0.1]}),
     "a: 10.0 % at the left end, 20.0 % at the right end"),
    (block_formats.error_against_bits, ({"mx": (4.25, 19.0)}, {"plain": (4, 12.0)}), ""),
    (block_formats.error_by_length, ([2, 4096], {"plain": [0.0, 0.5]}, [0.1, 0.1]), "plain 5.0e-01"),
    (partial(memory.memory_growth, along="layers", limits={"a card": Bytes(2**30)}), (OVER, GROWTH),
     "training: 1.00 MiB at 1, 4.00 MiB at 4. | a card has 1.00 GiB."),
    (lesson03.peak_for_every_k, (PEAKS, PEAKS, PEAKS, Bytes(12 * MIB)), "Keeping everything takes 12.00 MiB"),
    (lesson03.peak_for_every_k, (HELD, HELD, ALIVE, Bytes(8 * MIB)),
     "fall from 4.00 MiB at K = 1 to 2.00 MiB at K = 2 | the lowest is 5.00 MiB, at K = 3"),
    (lesson03.swap_or_recompute, ({"scores": 100}, {"a GPU": 8000}), "scores: 100; a GPU: 8,000"),
    (lesson03.chain_with_plan, (COSTS, [(0, 2)]), "Recomputed segments: 0 to 1."),
    (lesson03.held_against_limit, ({"plain": np.array([0, 4 * MIB])}, Bytes(2 * MIB)), "peak 4.00 MiB"),
    (lesson04.gradient_histograms, ({"x": (SIZES, 1.0)}, FP16), "20.0 % becomes 0, 40.0 % subnormal"),
    (lesson04.scale_hunt, ([8.0, 4.0], [0], [8.0, 4.0]), "is the same"),
    (lesson04.scale_hunt, ([8.0, 4.0], [0], [8.0, 8.0]), "is another"),
    (lesson04.gpu_peaks, ([hardware.A100_80GB], ["fp16"]), "fp16 312"),
    (losses.losses_and_distances, ({"fp32": [3.0, 2.0], "bf16": [3.0, 2.5]}, {"fp32": [0.0, 4.0], "bf16": [0.0, 1.5]}),
     "bf16: +0.25 nats, distance 1.5"),
    (costs.all_reduces_of_many_ranks, (14 * 10**9, FAST, [2, 4]), "direct from 0.14 to 0.42"),
    (lesson07.steps_and_examples_by_batch, (3.2e6,), "cross at 3.2e+06"),
    (partial(lesson08.split_product, alt="a"), (stops("columns", "rows", 4), 4), "a"),
    (lesson08.block_on_ranks, (),
     "stream whole on every rank; norm whole on every rank, then f; q, k, v cut by features | "
     "stream cut by tokens; norm cut by tokens, then g; q, k, v cut by features"),
    (lesson08.ring_in_time, ({"plain": work("plain", 4)},),
     "plain: 4 steps, ended after 3.5 squares; the ranks compute 0.5, 1.5, 2.5, 3.5"),
    (pipeline_charts, ({"V": simulate(zb_v(4, 8))}, "units", 1), "done after 25.5 units"),
    (lesson10.who_holds_what, (4,), "Stage 2: weights 2, gradients 0.5, optimizer state 3, together 5.5."),
    (lesson10.where_the_step_stands, (), "data parallelism: reduce-scatter, then all-gather, then step on all. | "
     "ZeRO: reduce-scatter, then step on a third, then all-gather."),
    (lesson10.zero3_timeline, (3, 0.5), "with prefetch, done after 10.5, at most 2 of 3 units' weights held"),
    (lesson11.the_cut, (FLOW, STATES), "goes: backward to gradients 2Ψ, update to weights 3Ψ, together 5Ψ bytes"),
    (lesson11.step_timeline, (), "sent as soon as made, "),
    (lesson13.queues, (WANTED, find_places(WANTED, 3, 2), 3, 2),
     "Queues of expert 0: 4, expert 1: 3, expert 2: 1; 2 places each; 3 choices are dropped."),
    (lesson13.queues, (WANTED, WANTED >= 0, 3, None), "no limit"),
    (lesson13.who_holds, (Mesh({"data": 2, "expert": 2, "tensor": 2}), EXPERTS, 64),
     "rank 5: experts 0 to 1, hidden features 8 to 15, tokens 32 to 47"),
    (lesson13.journey, (torch.tensor([[0, 3, 1], [3, 2, 3]]), 4), "6 tokens of 2 ranks | on rank 0: 2, rank 1: 4."),
    (partial(lesson13.by_seed, levels={"loss": {"letters": 2.9}}, every=20),
     ({"loss": SEEDS, "share (%)": {"alone": [[90.0, 20.0]]}},),
     "loss, alone: 2 to 2.5 at last; loss, balanced: 1 to 1 at last; share (%), alone: 20 to 20"),
    (lesson13.crowds, (RUNS, 2.985), "nothing: 2.5 to 2.5 | share (%), experts: 50 to 50 at last"),
    (lesson14.ahead, (LAW, {1e11: 1.9, 2e11: 1.85}, {3e11: 0.02, 2e12: 0.1}, (2e12, 1.70, 1.72)),
     "At 2.0e+12 FLOPs the law says 0.300 nats of excess, the run has 0.320."),
    (lesson16.roofline, (1e11, 2e10, {"sum": (0.1, 1e9)}),
     "rises to 100 GFLOP/s at 5.0 FLOPs a byte | sum: 0.1 FLOPs a byte, 1 GFLOP/s"),
    (lesson16.shares, ({"time": {"a": 0.75, "b": 0.25}},), "time: a 75.0 %, b 25.0 %"),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "given", "words"), PICTURES)
def test_a_picture_is_drawn_with_its_caption_and_words(draw: Callable[..., Any], given: tuple, words: str) -> None:
    picture = draw(*given, caption="c")
    assert picture.caption == "c" and (words or len(picture.alt) > 40)
    assert all(part in picture.alt for part in words.split(" | ")), picture.alt
    assert picture.png[:4] == b"\x89PNG"


@pytest.mark.nightly
@pytest.mark.parametrize(("draw", "given", "words"), PICTURES)
def test_a_picture_is_the_same_every_time(draw: Callable[..., Any], given: tuple, words: str) -> None:
    assert draw(*given, caption="c").png == draw(*given, caption="c").png


def test_there_is_no_share_of_experts_where_there_are_none() -> None:
    assert "share (%), nothing" not in lesson13.crowds(RUNS, 2.985, caption="c").alt


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: lesson02.segment_map(CachingAllocator(1), caption="c"), "allocate something first"),
        (lambda: Ladder([]), "without a rung"),
        (lambda: pipeline_charts({}, caption="c"), "at least one"),
        (lambda: lesson10.who_holds_what(9, caption="c"), "ranks=9: the picture has room for 2 to 8"),
        (lambda: lesson10.zero3_timeline(0, caption="c"), "units=0, gather=0.8"),
        (lambda: lesson10.zero3_timeline(4, 0.0, caption="c"), "a positive time"),
        (
            lambda: lesson11.the_cut({("attic", "update"): 1}, STATES, caption="c"),
            "no place for attic; there is one for forward, weights",
        ),
        (lambda: groups_along(Mesh({"data": 2}), caption="c"), "shows three axes"),
        (lambda: groups_along(Mesh({"pipeline": 2, "data": 2, "tensor": 8}), caption="c"), "1 to 4 ranks"),
        (
            lambda: groups_along(Mesh({"pipeline": 2, "data": 2, "tensor": 2}), caption="c", ranks_per_node=2),
            "a layer of this mesh has 4 ranks",
        ),
        (lambda: lesson13.who_holds(Mesh({"expert": 16}), EXPERTS, 64, caption="c"), "16 ranks"),
        (lambda: losses.loss_bands({"one": [[3.0, 2.0]]}, caption="c"), "fewer than two runs"),
        (lambda: memory.memory_bar({}, caption="c"), "at least one account"),
        (lambda: memory.memory_against_gpus(MemoryAccount(), {}, caption="c", alt="a"), "at least one card"),
        (lambda: memory.memory_growth(OVER, {}, along="layers", caption="c"), "3 values each"),
        (lambda: memory.memory_growth(OVER, {"short": [Bytes(1)]}, along="layers", caption="c"), "3 values each"),
        (lambda: memory.kept_tensors({}, caption="c"), "batches that keep the same tensors"),
        (
            lambda: memory.kept_tensors({"a": [("x", Bytes(1))], "b": [("y", Bytes(1))]}, caption="c"),
            "kept_tensors compares batches that keep the same tensors",
        ),
        (lambda: matrix([]), "0 accounts"),
        (lambda: matrix([TrafficAccount()] * 17), "17 accounts"),
        (lambda: matrix([TrafficAccount(bytes_to={1: Bytes(3)})]), "rank 1"),
        (lambda: matrix([TrafficAccount()] * 3, observed=True), "nothing was observed: this system does not count"),
        (lambda: who_sends_whom(dict.fromkeys("abcd", [TrafficAccount()] * 2), caption="c"), "4 matrices"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw()

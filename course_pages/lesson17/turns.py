"""Checks of lesson 17's turns: legal layouts, seconds of a step, the cost of stops, and rows with contradictions."""

from __future__ import annotations

import numpy as np

from course_kit.notebook.your_turn import Function

EXERCISES = 4 * 7 - 1, (2 * 100 * 7200) ** 0.5 / 60, 4.4 / (6 / 2)
"""Answers to the exercises: layouts (8 tensor ranks and 64 stages are more than 256 GPUs), minutes, a factor."""


def check_legal(legal: Function) -> None:
    """The layouts of eight clusters, among them those where one rule alone excludes some, and sizes of threes."""
    clusters = [(32, 32, 8, 8), (64, 80, 64, 8), (40, 40, 16, 8), (6, 12, 16, 8), (12, 7, 8, 4), (64, 5, 1, 1)]
    clusters += [(6, 12, 24, 8), (12, 12, 36, 6)]
    for heads, layers, gpus, node in clusters:
        due = {
            (t, p, gpus // (t * p))
            for t in range(1, node + 1)
            for p in range(1, layers + 1)
            if heads % t == node % t == layers % p == gpus % (t * p) == 0
        }
        layouts = legal(heads, layers, gpus, node)
        came = [tuple(int(size) for size in each) for each in layouts]
        told = f"{heads} heads, {layers} layers, {gpus} GPUs in machines of {node}"
        assert len(layouts) == len(set(came)), f"{told}: a layout comes twice"
        assert all(len(each) == 3 for each in came), f"{told}: each layout has three sizes"
        for t, p, d in sorted(set(came) - due):
            assert t * p * d == gpus, f"{told}: {(t, p, d)} came, whose ranks are {t * p * d}"
            assert node % t == 0, f"{told}: {(t, p, d)} came, whose tensor ranks do not share one machine evenly"
            assert heads % t == 0, f"{told}: {(t, p, d)} came, whose tensor ranks cannot have equally many heads"
            raise AssertionError(f"{told}: {(t, p, d)} came, whose stages cannot have equally many layers")
        assert not due - set(came), f"{told}: {len(due - set(came))} legal layouts are missing"


def check_step_seconds(step_seconds: Function) -> None:
    """Even and uneven stages, one stage, one micro-batch; blocks that wait for launches and blocks that do not."""
    cases = {
        "one stage": ([4], 0.02, 0.001, 0.01, 3, 0.0),
        "one micro-batch on two stages": ([2, 2], 0.02, 0.001, 0.0, 1, 0.0),
        "four even stages": ([2, 2, 2, 2], 0.02, 0.001, 0.0, 8, 0.0),
        "a head that makes the last stage slowest": ([3, 2], 0.02, 0.001, 0.03, 4, 0.0),
        "a last stage with fewer blocks": ([5, 5, 2], 0.02, 0.001, 0.01, 6, 0.0),
        "a middle stage with more blocks": ([4, 6, 2], 0.02, 0.001, 0.01, 6, 0.0),
        "launches that take longer than the products": ([2, 2], 0.002, 0.005, 0.001, 4, 0.0),
        "a data axis that sends": ([2, 2], 0.02, 0.001, 0.03, 4, 0.5),
    }
    for name, (blocks, products, launches, head, m, data) in cases.items():
        stages = [each * max(products, launches) for each in blocks]
        stages[-1] += head
        due = (m - 1) * max(stages) + sum(stages) + data
        came = float(step_seconds(list(blocks), products, launches, head, m, data))
        why = "the first micro-batch passes every stage, and each further one leaves when the slowest stage has done it"
        if len(blocks) == 1 or launches > products:
            why = "a micro-batch takes its blocks, where the slower of products and launches decides, and the head"
        told = f"{name}: {came:.4g} s came, too {'long' if came > due else 'short'}; {why}"
        assert abs(came - due) < 1e-6 * max(1, due), told


def check_lost(lost: Function) -> None:
    """Hand-made stops, 10,000 random ones, and checkpoints that are free."""
    stopped, interval = [[100.0, 25.0], [5.0], [24.0, 24.0], [11.0, 13.0], [30.0, 70.0]], 10
    for stops, checkpoint in zip(stopped, (2, 2, 2, 2, 0)):
        kept = sum(int(each // (interval + checkpoint)) for each in stops) * interval
        given = list(stops)
        due, came = 1 - kept / sum(stops), float(lost(given, interval, checkpoint))
        told = f"stops after {stops} s, a checkpoint of {checkpoint} s behind every {interval} s of work"
        assert given == stops, f"{told}: afterwards the list of stops is {given}; the next interval wants it, too"
        assert 0 <= came <= 1, f"{told}: {came:.3g} came, which is no share"
        assert abs(came - due) < 1e-5, (
            f"{told}: {came:.3f} came, too {'much' if came > due else 'little'}; progress is work that a whole "
            "checkpoint has saved, over all of the time"
        )
    draws = np.random.default_rng(0).exponential(1000.0, 10_000)
    due = 1 - 100 * (draws // 105).sum() / draws.sum()
    assert abs(float(lost(draws.tolist(), 100.0, 5.0)) - due) < 1e-5, f"10,000 random stops lose {due:.4f} of the time"


def check_contradictions(contradictions: Function) -> None:
    """Rows with none, either and both mistakes; and a rounded rate, which is no mistake."""
    right = {"axes": (8, 1, 16, 128), "gpus": 16_384, "mfu": 41.0, "peak": 989.0, "petaflops": 6644.0}
    wrong_axes, wrong_rate = {"axes": (8, 2, 16, 128)}, {"petaflops": 6810.0}
    low_rate = {"petaflops": 6478.0}
    cases = [(right, []), (right | wrong_axes, ["axes"]), (right | wrong_rate, ["rate"]), (right | low_rate, ["rate"])]
    cases += [(right | wrong_axes | wrong_rate, ["axes", "rate"]), (right | {"petaflops": 6553.6}, [])]
    cases += [({"axes": (8, 8, 4), "gpus": 256, "mfu": 50.0, "peak": 312.0, "petaflops": 39.9}, [])]
    cases += [(right | {"axes": (8, 1, 16, 64)}, ["axes"])]
    cases += [({"axes": (8, 8, 4), "gpus": 256, "mfu": 50.0, "peak": 312.0, "petaflops": 44.0}, ["rate"])]
    for row, due in cases:
        came = list(contradictions(dict(row)))
        assert sorted(came) == due, f"{row}: {came} came; multiply the axes, and turn the MFU into PFLOP/s of all GPUs"

"""A step of a grid over time: passes take the time that was set, and each message is known by its axis."""

from __future__ import annotations

from collections import Counter

import torch

from course_kit import ranks
from course_lib.parallel.hybrid import AXES, HybridParallel
from course_lib.parallel.mesh import Mesh
from course_pages.lesson12.recorded import recorded_step
from tests.parallel.test_hybrid import TIED, batch_of

UNIT_S = 0.01


def recorded(sizes: tuple[int, int, int]) -> tuple[object, float]:
    grid = HybridParallel(TIED, Mesh(dict(zip(AXES, sizes))), micro_batches=2)
    optimizer = grid.optimizer(torch.optim.SGD, lr=0.1)
    before = grid.train_step(optimizer, batch_of(0)).item()
    record = recorded_step(grid, optimizer, batch_of(0), UNIT_S)
    return record, before - grid.train_step(optimizer, batch_of(0)).item()


def test_waits_are_known_by_their_axis_and_passes_take_their_time() -> None:
    """Two stages of two halves: each of two blocks sums up four times in each of two micro-batches."""
    record, gained = ranks.run(recorded, (2, 1, 2), world_size=4, diagnose=False)[3]
    for rank in range(4):
        waits = Counter(event.name for event in record.of(rank, "wait"))
        assert waits["all_reduce along tensor"] == 2 * 2 * 4 + (2 if rank >= 2 else 0)  # the last stage: the logits
        assert waits["recv along pipeline"] >= 2
        assert not any("along data" in name for name in waits if not name.startswith("all_reduce"))
        spent = Counter[str]()
        for event in record.of(rank, "compute"):
            spent[event.name] += event.end_s - event.start_s
        waited = sum(e.end_s - e.start_s for e in record.of(rank, "wait") if "tensor" in e.name)
        assert spent["forward"] + spent["backward"] + waited >= 2 * 3 * UNIT_S
        assert spent["update"] > 0
    assert gained > 0  # both steps were real

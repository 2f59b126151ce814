"""DualPipe: micro-batches enter at both ends of the pipeline. As data only: drawn, checked and counted, but not run.

DeepSeek-V3 sends half of the micro-batches down the ranks and half up, so that each rank has a forward of one half to
do together with a backward of the other: while one computes, the other's experts exchange tokens. The price is a second
copy of the weights: rank r holds stage r for one half and stage P - 1 - r for the other.
"""

from __future__ import annotations

from collections import Counter, deque

from course_lib.model.refusals import check_sizes
from course_lib.pipeline.schedule.actions import Action, Schedule


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """The schedule of the DeepSeek-V3 report, §3.2.1: P + 1 micro-batches held on every rank.

    The report's table has a bubble of (P/2 - 1)(F&B + B - 3W), with B a whole backward pass and F&B a forward and a
    backward in one block, which overlap and whose results leave together. Here the two stand one behind the other (F,
    then BW), and the forward's result leaves before the backward begins: (P/2 - 1)(F + B - 2W).

    Raises:
        ValueError: an odd number of ranks or of micro-batches, or fewer than two micro-batches a rank.
    """
    check_sizes(ranks=ranks, micro_batches=micro_batches)
    if ranks % 2 or micro_batches % 2 or micro_batches < 2 * ranks:
        raise ValueError(
            f"{micro_batches} micro-batches on {ranks} ranks: DualPipe needs an even number of both, and at least two "
            "micro-batches a rank"
        )
    rows = tuple(_order(rank, ranks, micro_batches) for rank in range(ranks))
    return Schedule("dualpipe", rows, tuple(range(ranks)), micro_batches, mirrored=micro_batches // 2)


def _order(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """Eight phases; 0 is the half that enters at the nearer end of the pipeline, 1 the other."""
    near = min(rank, ranks - 1 - rank) + 1  # 1 at both ends, P/2 in the middle
    far = ranks // 2 - near
    words = ["F0"] * (2 * far) + ["F0", "F1"] * near + ["B1", "W", "F1"] * far
    words += ["F0", "BW1", "F1", "BW0"] * (micro_batches // 2 - ranks + near) + ["BW1", "F1", "BW0"] * far
    words += (["BW1", "BW0"] * near)[:near] + (["B1", "B0"] * near)[near:]
    words += ["W", "B0"] * far + ["W"] * near
    count, weights, actions = Counter[tuple[str, bool]](), deque[Action](), []
    for word in words:
        if word == "W":
            actions.append(weights.popleft())
            continue
        kind, mirrored = word[:-1], (word[-1] == "1") != (rank >= ranks // 2)
        number = count[kind[0], mirrored]
        count[kind[0], mirrored] += 1  # B and BW share their count
        action = Action(
            kind,  # type: ignore[arg-type]
            ranks - 1 - rank if mirrored else rank,
            number + mirrored * (micro_batches // 2),
        )
        actions.append(action)
        if kind == "B":
            weights.append(action._replace(kind="W"))
    return tuple(actions)

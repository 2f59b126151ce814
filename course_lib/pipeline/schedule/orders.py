"""The pipeline schedules of the papers, each in a few lines: the order of a rank's forwards and backwards.

All share one pattern. A rank runs some forwards *ahead*, then takes a backward and a forward in turn, then the
backwards that are left. The number ahead decides how long the rank idles and how many micro-batches it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from course_lib.model.refusals import check_sizes
from course_lib.pipeline.schedule.actions import Action, Schedule
from course_lib.pipeline.schedule.gaps import in_turn, zb_h2, zb_v


def naive(stages: int, micro_batches: int) -> Schedule:
    """One micro-batch at a time, through all stages and back: bubble (P-1)/P, one micro-batch in flight."""
    return _schedule("naive", stages, micro_batches, lambda stage: 1)  # one F, then its backward, and again


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards: bubble (P-1)/(M+P-1), M micro-batches in flight. Huang et al. 2019, §2.3."""
    return _schedule("gpipe", stages, micro_batches, lambda stage: micro_batches)  # nothing is left to take in turn


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Only as many forwards ahead as keep the later stages busy: GPipe's bubble, P - stage micro-batches in flight.

    Narayanan et al. 2021 (PTD-P), §2.2.1, under the name PipeDream-Flush.
    """
    return _schedule("1f1b", stages, micro_batches, lambda stage: stages - stage)


def interleaved(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """1F1B with `chunks` short stages a rank instead of a long one: rank r has stages r, r + P, r + 2P, …

    A micro-batch visits each rank `chunks` times, and the pipeline fills in shorter steps: the bubble over the ideal
    falls from (P-1)/M to (P-1)/(M · chunks), for `chunks` times the messages. Narayanan et al. 2021, §2.2.2; the order
    is Megatron-LM's.

    Raises:
        ValueError: the micro-batches do not divide into groups of `ranks`.
    """
    check_sizes(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if micro_batches % ranks:
        raise ValueError(
            f"{micro_batches} micro-batches on {ranks} ranks: they come round in groups of {ranks}, so interleaving "
            f"needs a multiple of it, such as {ranks * -(-micro_batches // ranks)}"
        )
    rows = tuple(tuple(interleaved_order(rank, ranks, micro_batches, chunks)) for rank in range(ranks))
    owner = tuple(stage % ranks for stage in range(ranks * chunks))  # dealt out like cards
    return Schedule(f"interleaved ×{chunks}", rows, owner, micro_batches)


def interleaved_order(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Action]:
    """The order of a rank: micro-batches in groups of P, and each group through all chunks before the next one begins.

    When rank 0 has taken a group through a chunk, its first micro-batch is back from rank P - 1.
    """
    groups = range(0, micro_batches, ranks)
    visits = [(chunk, first + place) for first in groups for chunk in range(chunks) for place in range(ranks)]
    forwards = [Action("F", chunk * ranks + rank, number) for chunk, number in visits]
    backwards = [Action("BW", (chunks - 1 - chunk) * ranks + rank, number) for chunk, number in visits]
    # a group through all chunks but the last, 2 for each rank that follows, and the first F of 1F1B
    return alternate(forwards, backwards, ahead=(chunks - 1) * ranks + 2 * (ranks - rank - 1) + 1)


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """1F1B with the halves of a backward pass apart: B at once, since a stage waits for it, and W where the rank would
    idle. Rank r keeps each W back for r micro-batches. So all ranks hold as many as rank 0 does in 1F1B, and the bubble
    is a third of 1F1B's when F, B and W take equally long. ZB-H1 of Qi et al. 2023, §2.2.
    """

    def split(stage: int, order: list[Action]) -> Iterable[Action]:
        for kind, _, number in order:
            yield Action("F" if kind == "F" else "B", stage, number)
            if kind == "BW" and number >= stage:  # stage and rank have the same number
                yield Action("W", stage, number - stage)
        yield from (Action("W", stage, number) for number in range(max(0, micro_batches - stage), micro_batches))

    return _schedule("zero-bubble", stages, micro_batches, lambda stage: stages - stage, split)


def pipedream(stages: int, micro_batches: int) -> Schedule:
    """1F1B that never drains: the optimizer steps after each backward pass, so a forward pass sees weights without the
    updates of the P - 1 - stage micro-batches before it. Its backward pass must use the same weights, so a stage keeps
    P - stage versions of them. Narayanan et al. 2019, §3.
    """

    def update(stage: int, order: list[Action]) -> Iterable[Action]:
        for action in order:
            yield action
            if action.kind == "BW":
                yield Action("U", stage, action.micro_batch)

    return _schedule("pipedream", stages, micro_batches, lambda stage: stages - stage, update)


ORDERS: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "pipedream": pipedream,
}
"""Name → the schedule, from the number of ranks and of micro-batches."""


def alternate(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """`ahead` forwards, then backward and forward in turn, then the backwards that are left."""
    return forwards[:ahead] + in_turn(backwards, forwards[ahead:])  # a backward frees what the next forward will keep


def _schedule(
    name: str, stages: int, micro_batches: int, ahead: Callable[[int], int],
    change: Callable[[int, list[Action]], Iterable[Action]] = lambda stage, order: order,
) -> Schedule:  # fmt: skip
    """A schedule of one stage a rank with `ahead(stage)` forwards ahead; `change` rewrites a rank's order."""
    check_sizes(stages=stages, micro_batches=micro_batches)

    def order(stage: int) -> tuple[Action, ...]:
        forwards = [Action("F", stage, number) for number in range(micro_batches)]
        backwards = [Action("BW", stage, number) for number in range(micro_batches)]
        return tuple(change(stage, alternate(forwards, backwards, ahead(stage))))

    return Schedule(name, tuple(order(stage) for stage in range(stages)), tuple(range(stages)), micro_batches)

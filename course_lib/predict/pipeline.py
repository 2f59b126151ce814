"""Pipelines in closed form: the time that ranks idle, the micro-batches that they hold, and so all that a rank holds.

`pipeline.schedule` writes the same schedules down action by action and plays them; here are the papers' conclusions.
V-Half and V-Min, which hold less than ZB-V for a longer bubble (Qi et al. 2024), are in neither.
"""

from __future__ import annotations

from typing import NamedTuple

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Count, Ratio
from course_lib.model.refusals import one_of
from course_lib.pipeline.schedule import peak_in_flight, zb_v
from course_lib.pipeline.schedule.orders import interleaved_order
from course_lib.predict.memory import model_states, rank_activations
from course_lib.predict.setup import Setup, positive

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble", "zb-h2", "zb-v")


class Bubble(NamedTuple):
    """Idle time of all ranks together, in the two conventions."""

    over_all: Ratio  # over working and idle time, as GPipe counts; below 1
    over_ideal: Ratio  # over working time alone, as Narayanan et al. count


def bubble(setup: Setup, schedule: str = "1f1b", chunks: int = 1, synchronized: bool = True) -> Bubble:
    """The bubble of p stages of equal cost and m micro-batches, without time for messages. Over the ideal it is

    - "naive": p - 1, since one rank works and the others wait.
    - "gpipe" and "1f1b": (p-1) / m (Huang et al. 2019, §2.3; Narayanan et al. 2021, §2.2.1). They differ in memory.
    - "interleaved": (p-1) / (m · chunks), for `chunks` times the messages (Narayanan et al. 2021, §2.2.2).
    - "zero-bubble" and "zb-h2": (p-1) / 3m, where a forward pass and the two halves of a backward pass take equally
      long and m is at least p (ZB-H1 and ZB-H2; Qi et al. 2023, §2.3).
    - "zb-v": (p-1) / 6m, under the same conditions: the V's stages are half as long (first version, §6).

    `synchronized=False`: no rank waits for another one between two steps, so only gaps between a rank's first and
    last action are idle. In "zb-h2" and "zb-v" that is max(0, 2p-1-m) / 3m and half of it, none for m >= 2p-1;
    in all others the same as above, since rank 0 begins first and ends last (§4).

    `schedule` is one of `SCHEDULES`; `chunks` are the stages on each rank, for "interleaved".

    Raises:
        ValueError: an unknown schedule, chunks without interleaving, or a number of micro-batches that the schedule's
            formula does not hold for.
    """
    _check(setup, schedule, chunks)
    p, m = setup.pipeline, int(setup.micro_batches)
    over = {"naive": p - 1, "gpipe": (p - 1) / m, "zero-bubble": (p - 1) / (3 * m)}  # idle over working
    over |= {"1f1b": over["gpipe"], "interleaved": (p - 1) / (m * chunks)}
    over["zb-h2"] = over["zero-bubble"] if synchronized else max(0, 2 * p - 1 - m) / (3 * m)
    over["zb-v"] = over["zb-h2"] / 2  # stages half as long fill the pipeline twice as finely
    return Bubble(Ratio(over[schedule] / (1 + over[schedule])), Ratio(over[schedule]))  # x / (1 + x): over all time


def in_flight(setup: Setup, stage: int = 0, schedule: str = "1f1b", chunks: int = 1) -> Count:
    """The most micro-batches that rank `stage` holds at once, from a forward pass until its gradients are made.

    - "naive": 1.
    - "gpipe": m.
    - "1f1b": min(m, p - stage) (Narayanan et al. 2021, §2.2.1).
    - "interleaved": min(m · chunks, 2(p - 1 - stage) + (chunks - 1)·p + 1), each of them in one of the rank's stages,
      which has 1/chunks of its layers. So rank 0 holds L·(1 + (p-1)/(p·chunks)) layers' worth (Korthikanti et al. 2022,
      §4.2.3).
    - "zero-bubble": min(m, p) on every rank (Qi et al. 2023, §2.2).
    - "zb-h2": min(m, 2p - 1) on every rank (the same). From B to W less is kept; so the most bytes are rank 0's.
    - "zb-v": min(2m, 2p) on every rank, each of them in one of the rank's two stages, which have half of its layers (Qi
      et al. 2023, first version, §6).

    Raises as `bubble`, and for a rank that there is not.
    """
    _check(setup, schedule, chunks)
    p, m = setup.pipeline, int(setup.micro_batches)
    if isinstance(stage, range) or not 0 <= stage < p:
        raise ValueError(f"stage={stage}: with pipeline={p} there are stages 0 to {p - 1}; `layers` say what is on one")
    most = {"naive": 1, "gpipe": m, "1f1b": p - stage, "zero-bubble": p}
    most |= {"interleaved": 2 * (p - 1 - stage) + (chunks - 1) * p + 1, "zb-h2": 2 * p - 1, "zb-v": 2 * p}
    return Count(min(m * (2 if schedule == "zb-v" else chunks), most[schedule]))  # no more than there are


def rank_memory(
    setup: Setup, stage: int = 0, schedule: str = "1f1b", chunks: int = 1, layers: range | None = None
) -> MemoryAccount:
    """The most that a rank holds between its passes: model states, and all activations in flight.

    `in_flight` micro-batches each keep `rank_activations`. Where a rank has several stages, its actions are played, for
    stages differ: of the last one, with the head, backward comes at once, so that one micro-batch's logits are there
    and not those of all in flight. ("zb-v": half stages down and up the V, so that rank 0 has both ends of the model.)
    Tensors that live within a pass are not counted: `peak` follows them on one rank, `unit_buffers` has those that
    ZeRO-3 gathers. A stage that is no even cut is told by its `layers`, as in `rank_tensors`.

    Raises:
        ValueError: as `rank_tensors`, `saved_tensors` and `in_flight`; chunks that do not divide a rank's blocks.
    """
    most, p, m = in_flight(setup, stage, schedule, chunks), setup.pipeline, int(setup.micro_batches)
    each, part = 2 if schedule == "zb-v" else chunks, stage if layers is None else layers
    if each == 1:
        return model_states(setup, part) + MemoryAccount(activations=Bytes(most * rank_activations(setup, part)))
    if layers is not None:
        raise ValueError(f"layers={layers}, schedule={schedule!r}: a rank with {each} stages has them cut evenly here")
    if setup.shape.layers % (p * each):
        raise ValueError(f"{setup.shape.layers} blocks do not split into pipeline={p} · chunks={each}")
    actions = zb_v(p, m).actions[stage] if schedule == "zb-v" else interleaved_order(stage, p, m, chunks)
    finer, own = setup.with_(pipeline=p * each), {action.stage for action in actions}
    held = peak_in_flight(actions, {number: rank_activations(finer, number) for number in own})
    return sum((model_states(finer, number) for number in own), MemoryAccount(activations=Bytes(held)))


def _check(setup: Setup, schedule: str, chunks: int) -> None:
    one_of("schedule", schedule, SCHEDULES)
    positive(chunks=chunks)
    p, m = setup.pipeline, int(setup.micro_batches)
    if chunks > 1 and schedule != "interleaved":
        raise ValueError(f'chunks={chunks} is for schedule="interleaved"; here it is {schedule!r}')
    if schedule == "interleaved" and m % p:
        raise ValueError(f"{m} micro-batches come round in groups of pipeline={p}, which must divide them")
    if schedule in ("zero-bubble", "zb-h2", "zb-v") and m < p:
        raise ValueError(
            f"{m} micro-batches are fewer than pipeline={p} stages: a zero-bubble schedule's is for m >= p"
        )

"""The mistakes of a schedule, in words: actions that are missing, double, misplaced or too early, and deadlocks."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from course_lib.pipeline.schedule.actions import Action, Message, Schedule

NAMES = {"F": "forward", "BW": "backward", "B": "input gradient", "W": "weight gradient", "U": "update"}
REASONS = {
    "F": "a backward pass needs what its forward pass kept",
    "B": "a weight gradient needs the gradients that the first half sends through the layers",
    "BW": "an update needs the gradient",
    "W": "an update needs the weights' gradient",
}
"""The kind of the earlier action → why the later one needs it."""
WAITS = "rank {rank} waits before {action} for {message}, which rank {peer} has not yet made"
WAITS_FOR_ITSELF = "rank {rank} wants to do {action}, for which it makes {message} only later"


def problems(schedule: Schedule, blocking_sends: bool = False) -> list[str]:
    """List every reason why ranks cannot carry out a schedule, or get wrong gradients from it.

    With `blocking_sends` the ranks wait in each send for its receive, as `dist.send` may. The course's executor does
    not wait, and so fewer schedules deadlock.
    """
    found = misplaced(schedule) + miscounted(schedule)
    found = found or too_early(schedule)  # needs one place for each action
    return found or deadlocks(schedule, blocking_sends)  # needs a sender and a receiver for each message


def checked(schedule: Schedule) -> Schedule:
    """Return the schedule if ranks can carry it out.

    Raises:
        ValueError: the schedule has `problems`, which follow one a line.
    """
    if found := problems(schedule):
        raise ValueError(f"the schedule {schedule.name!r} cannot be run:\n" + "\n".join(f"- {each}" for each in found))
    return schedule


def misplaced(schedule: Schedule) -> list[str]:
    """List actions on stages that belong to another rank, and on stages or micro-batches that do not exist."""
    found = []
    for rank, actions in enumerate(schedule.actions):
        for action in actions:
            where = f"rank {rank}: {_name(action)}:"
            if not 0 <= action.stage < schedule.stages:
                found.append(f"{where} there are {schedule.stages} stages, counted from 0")
            elif not 0 <= action.micro_batch < schedule.micro_batches:
                found.append(f"{where} there are {schedule.micro_batches} micro-batches, counted from 0")
            elif (owner := schedule.rank_of(action.stage, action.micro_batch)) != rank:
                found.append(f"{where} the weights of stage {action.stage} are on rank {owner}; give it the action")
    return found


def miscounted(schedule: Schedule) -> list[str]:
    """List actions that are missing or double: each micro-batch needs, on each stage, one F and one backward pass."""
    counts = Counter(action for actions in schedule.actions for action in actions)
    found = [f"{_name(action)} is there {n} times: {_why_once(action)}" for action, n in counts.items() if n > 1]
    updates = schedule.is_asynchronous  # U then belongs to every micro-batch
    for stage in range(schedule.stages):
        for number in range(schedule.micro_batches):
            has = {kind for kind in NAMES if Action(kind, stage, number) in counts}  # type: ignore[arg-type]
            where = f"of micro-batch {number} on stage {stage}"
            if "F" not in has:
                found.append(f"the forward pass (F{number}) {where} is missing")
            if not has & {"B", "W", "BW"}:
                found.append(f"the backward pass (BW{number}) {where} is missing: its gradient would be lost")
            elif "BW" in has and has & {"B", "W"}:
                found.append(
                    f"the backward pass {where} is there whole (BW) and in parts (B, W): one of them is enough"
                )
            elif "BW" not in has and not {"B", "W"} <= has:
                kind = "B" if "W" in has else "W"
                found.append(f"the {NAMES[kind]} ({kind}{number}) {where} is missing: B and W are halves of BW")
            if updates and "U" not in has:
                found.append(f"the update (U{number}) {where} is missing: where one micro-batch updates, all must")
    return found


def too_early(schedule: Schedule) -> list[str]:
    """List actions that come too early on their own stage: the order is F, then B or BW, then W, then U."""
    needs = {"B": ("F",), "BW": ("F",), "W": ("F", "B"), "U": ("BW", "W")}
    found = []
    for rank, actions in enumerate(schedule.actions):
        place = {action: index for index, action in enumerate(actions)}
        for action, index in place.items():
            for kind in needs.get(action.kind, ()):
                first = action._replace(kind=kind)
                if place.get(first, -1) > index:  # -1: the pass has its other form, BW or B and W
                    found.append(f"rank {rank}: {_name(action)} comes before {first}: {REASONS[kind]}")
    return found


class PointToPoint(NamedTuple):
    """A message that a rank sends to `peer` or receives from there, and the action that sends or needs it."""

    verb: str
    message: Message
    peer: int
    action: Action


def point_to_point(schedule: Schedule, rank: int) -> list[PointToPoint]:
    """List a rank's sends and receives in its order: an action's message comes before it, its result goes after it."""
    in_order = []
    for action in schedule.actions[rank]:
        needed, made = schedule.consumes(action), schedule.produces(action)
        if needed is not None:
            sender = schedule.rank_of(action.stage + (-1 if needed.what == "activation" else 1), action.micro_batch)
            in_order.append(PointToPoint("receive", needed, sender, action))
        if made is not None:
            in_order.append(PointToPoint("send", made, schedule.rank_of(made.stage, made.micro_batch), action))
    return in_order


def deadlocks(schedule: Schedule, blocking_sends: bool = False) -> list[str]:
    """Explain which ranks wait for each other, if the ranks come to a point where none can go on."""
    left = [deque(point_to_point(schedule, rank)) for rank in range(schedule.ranks)]
    delivered: set[Message] = set()
    awake = deque(range(schedule.ranks))  # ranks that may be able to go on
    while awake:
        rank = awake.popleft()
        while left[rank]:
            verb, message, peer, _ = left[rank][0]
            meets = left[peer] and left[peer][0][:2] == ("receive", message)  # the peer stands at the other end
            if verb == "send" and blocking_sends and peer != rank and not meets:
                break  # the peer wakes this rank when it comes to the receive
            if verb == "receive" and message not in delivered:
                if peer != rank:
                    awake.extend([peer] if left[peer] and left[peer][0][:2] == ("send", message) else [])
                break
            left[rank].popleft()
            if verb == "send":
                delivered.add(message)  # it may wait there for its receiver
                awake.append(peer)
    fronts = {rank: waiting[0] for rank, waiting in enumerate(left) if waiting}
    return [_explain(fronts)] if fronts else []


def _explain(fronts: dict[int, PointToPoint]) -> str:
    """Follow waiting ranks until one comes up twice; none waits for a rank that is done."""
    rank, path = next(iter(fronts)), []
    while rank not in path:  # each waits for exactly one other
        path.append(rank)
        rank = fronts[rank].peer
    circle = path[path.index(rank) :]  # without the ranks that only lead to it
    waits = "; ".join(_waits(rank, fronts[rank]) for rank in circle)
    why = "Each waits for the next" if len(circle) > 1 else "It waits for itself"
    return f"deadlock: {waits}. {why}, so nobody can go on"


def _waits(rank: int, call: PointToPoint) -> str:
    if call.verb == "send":
        return f"rank {rank} sends {call.message} (behind {call.action}) and waits until rank {call.peer} receives it"
    if call.peer == rank:
        return WAITS_FOR_ITSELF.format(rank=rank, action=_name(call.action), message=call.message)
    return WAITS.format(rank=rank, action=_name(call.action), message=call.message, peer=call.peer)


def _name(action: Action) -> str:
    return f"{action} (the {NAMES[action.kind]} of micro-batch {action.micro_batch} on stage {action.stage})"


def _why_once(action: Action) -> str:
    if action.kind == "F":
        return "one forward pass is enough, and each keeps its activations"
    return "what it needs is gone after the first time" if action.kind != "U" else "its gradient would count twice"

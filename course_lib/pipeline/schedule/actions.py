"""What a pipeline schedule is: for each rank, a list of actions. No process, no tensor, no time.

    F   forward pass of a micro-batch through a stage
    BW  its whole backward pass: the gradients of the stage's input and of its weights
    B   its first half only: the gradient of the input, for which the stage before waits
    W   its second half: the gradients of the weights, for which nobody waits
    U   the optimizer's step with this micro-batch's gradient (asynchronous schedules only)

In the papers' drawings a "backward" is BW, but for Qi et al. 2023, whose B is half of it, as here. Stages count from 0
in the direction of the forward pass. Messages are not listed, since they follow: an F sends its result to the next
stage's F of the same micro-batch, a B or BW the gradient to the stage before.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Kind = Literal["F", "B", "W", "BW", "U"]


class Action(NamedTuple):
    """What a rank does at one time: `kind` for one micro-batch on one stage."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


class Message(NamedTuple):
    """What must have come before an action can begin: an "activation" for an F, a "gradient" for a B or BW.

    Attributes:
        what: which of the two.
        stage: the stage that it is for.
        micro_batch: the micro-batch that it belongs to.
    """

    what: Literal["activation", "gradient"]
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"the {self.what} of micro-batch {self.micro_batch} for stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """Each rank's actions, in the order in which it does them.

    Anything can be written down here; `problems` says what is wrong with it.

    Attributes:
        name: what to call it.
        actions: rank → its actions.
        owner: stage → the rank that holds it.
        micro_batches: how many there are in a step.
    """

    name: str
    actions: tuple[tuple[Action, ...], ...]
    owner: tuple[int, ...]
    micro_batches: int

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """How many stages there are, on all ranks together."""
        return len(self.owner)

    @functools.cached_property
    def is_asynchronous(self) -> bool:
        """Whether weights change inside the schedule (U), so that micro-batches see different ones."""
        return any(action.kind == "U" for actions in self.actions for action in actions)

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a rank holds."""
        return [stage for stage, owner in enumerate(self.owner) if owner == rank]

    def consumes(self, action: Action) -> Message | None:
        """What the action waits for; None on the first stage's F and on the last stage's backward."""
        kind, stage, micro_batch = action
        if kind == "F" and stage > 0:
            return Message("activation", stage, micro_batch)
        if kind in ("B", "BW") and stage < len(self.owner) - 1:
            return Message("gradient", stage, micro_batch)
        return None

    def produces(self, action: Action) -> Message | None:
        """What the action makes for a neighbouring stage."""
        kind, stage, micro_batch = action
        if kind == "F" and stage < len(self.owner) - 1:
            return Message("activation", stage + 1, micro_batch)
        if kind in ("B", "BW") and stage > 0:
            return Message("gradient", stage - 1, micro_batch)
        return None

    def validate(self) -> Schedule:
        """This schedule, if ranks can carry it out.

        Raises:
            ValueError: every reason why not, one a line.
        """
        from course_lib.pipeline.schedule.validate import problems  # which needs this class

        if found := problems(self):
            raise ValueError(f"the schedule {self.name!r} cannot be run:\n" + "\n".join(f"- {each}" for each in found))
        return self

    def __str__(self) -> str:
        """What `parse` reads: a line for each rank."""
        return "\n".join(
            " ".join(f"{action}" if action.stage == rank else f"{action}@{action.stage}" for action in actions)
            for rank, actions in enumerate(self.actions)
        )


def parse(text: str, name: str = "written by hand") -> Schedule:
    """A schedule from text: a line for each rank, such as `F0 F1 BW0 BW1`; the number is the micro-batch.

    An action belongs to the stage with the rank's own number unless it names another one, as `F0@4` does. A stage
    belongs to the first rank that names it.

    Raises:
        ValueError: a word that is no action, or a stage that nobody has.
    """
    actions = [
        tuple(_parse_word(word, rank) for word in line.split()) for rank, line in enumerate(text.strip().splitlines())
    ]
    owners: dict[int, int] = {}
    for rank, each in enumerate(actions):
        for action in each:
            owners.setdefault(action.stage, rank)
    if missing := set(range(max(owners, default=0) + 1)) - owners.keys():
        raise ValueError(f"no rank does anything on stage {min(missing)}: stages count from 0 without a gap")
    n_micro_batches = 1 + max(action.micro_batch for each in actions for action in each)
    return Schedule(name, tuple(actions), tuple(owners[stage] for stage in sorted(owners)), n_micro_batches)


def _parse_word(word: str, rank: int) -> Action:
    found = re.fullmatch(r"(BW|[FBWU])(\d+)(?:@(\d+))?", word)
    if found is None:
        raise ValueError(f"{word!r} is no action: write one of {', '.join(get_args(Kind))} and a number, such as BW3")
    kind, micro_batch, stage = found.groups()
    return Action(kind, rank if stage is None else int(stage), int(micro_batch))  # type: ignore[arg-type]


def peak_in_flight(
    actions: Sequence[Action], after_forward: float = 1, after_input_gradient: float | None = None
) -> float:
    """The most that a rank holds for the backward passes still to come, after any one of its actions.

    Without further arguments: how many (stage, micro-batch) pairs are in flight, from their F until all their gradients
    are made.

    Args:
        actions: of one rank.
        after_forward: what a micro-batch holds on a stage between F and BW (or B), such as its bytes.
        after_input_gradient: what it still holds between B and W; None for as much as before.
    """
    waiting = after_forward if after_input_gradient is None else after_input_gradient
    change = {"F": after_forward, "BW": -after_forward, "B": waiting - after_forward, "W": -waiting, "U": 0}
    held = peak = 0.0
    for action in actions:
        held += change[action.kind]
        peak = max(peak, held)
    return int(peak) if peak == int(peak) else peak

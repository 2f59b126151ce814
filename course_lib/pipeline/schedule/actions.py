"""A pipeline schedule: for each rank a list of actions. No process, no tensor, no time.

    F   forward pass of a micro-batch through a stage
    BW  its whole backward pass: the gradients of the stage's input and of its weights
    B   its first half only: the gradient of the input, for which the stage before waits
    W   its second half: the gradients of the weights, for which no other stage waits
    U   the optimizer's step with this micro-batch's gradient (asynchronous schedules only)

In most papers "backward" or B is the whole BW; Qi et al. 2023 use B and W as here. Stages count from 0 in the direction
of the forward pass. Messages follow from the actions: an F sends its result to the next stage's F of the same
micro-batch, a B or BW the gradient of its input to the stage before.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Kind = Literal["F", "B", "W", "BW", "U"]


class Action(NamedTuple):
    """One thing that a rank does: `kind` for one micro-batch on one stage."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


class Message(NamedTuple):
    """The tensor from a neighbouring stage that an action needs, an F an activation, a B or BW a gradient."""

    what: Literal["activation", "gradient"]
    stage: int  # the one that needs the tensor
    micro_batch: int

    def __str__(self) -> str:
        return f"the {self.what} of micro-batch {self.micro_batch} for stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """Each rank's actions, in order. An impossible schedule can be written down, too: `problems` lists the reasons.

    Attributes:
        name: for charts and messages.
        actions: rank → its actions.
        owner: stage → the rank that holds it.
        micro_batches: number of micro-batches in a step.
        mirrored: number of micro-batches, the last ones, that go up the ranks: their stage s is on the rank that
            has stage S - 1 - s of the others, with a second copy of its weights (`dualpipe`).
    """

    name: str
    actions: tuple[tuple[Action, ...], ...]
    owner: tuple[int, ...]
    micro_batches: int
    mirrored: int = 0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """The number of stages, on all ranks together."""
        return len(self.owner)

    @functools.cached_property
    def is_asynchronous(self) -> bool:
        """Whether the optimizer steps inside the schedule (U), so that micro-batches see different weights."""
        return any(action.kind == "U" for actions in self.actions for action in actions)

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank."""
        return [stage for stage, owner in enumerate(self.owner) if owner == rank]

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """The rank that has a stage, for this micro-batch."""
        return self.owner[stage if micro_batch < self.micro_batches - self.mirrored else self.stages - 1 - stage]

    def consumes(self, action: Action) -> Message | None:
        """The message that an action waits for; None for the first stage's F and the last stage's B or BW."""
        kind, stage, micro_batch = action
        if kind == "F" and stage > 0:  # the first stage reads tokens
            return Message("activation", stage, micro_batch)
        if kind in ("B", "BW") and stage < len(self.owner) - 1:  # the last stage has the loss
            return Message("gradient", stage, micro_batch)
        return None

    def produces(self, action: Action) -> Message | None:
        """The message that an action sends; None for the last stage's F, the first stage's B or BW, and W and U."""
        kind, stage, micro_batch = action
        if kind == "F" and stage < len(self.owner) - 1:  # to the right
            return Message("activation", stage + 1, micro_batch)
        if kind in ("B", "BW") and stage > 0:  # to the left; W makes gradients that stay
            return Message("gradient", stage - 1, micro_batch)
        return None

    def __str__(self) -> str:
        """The text that `parse` reads: a line for each rank."""
        return "\n".join(
            " ".join(f"{action}" if action.stage == rank else f"{action}@{action.stage}" for action in actions)
            for rank, actions in enumerate(self.actions)
        )


def parse(text: str, name: str = "written by hand") -> Schedule:
    """Read a schedule from text: a line for each rank, such as `F0 F1 BW0 BW1`; the number is the micro-batch.

    An action is on the stage with the rank's own number unless it names another one, as `F0@4` does. The first rank
    that names a stage owns it.

    Raises:
        ValueError: a word that is no action, or a stage that no rank has.
    """
    actions = [
        tuple(_parse_word(word, rank) for word in line.split()) for rank, line in enumerate(text.strip().splitlines())
    ]
    owners: dict[int, int] = {}
    for rank, each in enumerate(actions):
        for action in each:
            owners.setdefault(action.stage, rank)  # the first rank that names a stage
    if missing := set(range(max(owners, default=0) + 1)) - owners.keys():
        raise ValueError(f"no rank does anything on stage {min(missing)}: stages count from 0 without a gap")
    n_micro_batches = 1 + max(action.micro_batch for each in actions for action in each)  # `problems` tells of gaps
    return Schedule(name, tuple(actions), tuple(owners[stage] for stage in sorted(owners)), n_micro_batches)


def _parse_word(word: str, rank: int) -> Action:
    parts = re.fullmatch(r"(BW|[FBWU])(\d+)(?:@(\d+))?", word)  # BW first, or B would take its letter
    if parts is None:
        raise ValueError(f"{word!r} is no action: write one of {', '.join(get_args(Kind))} and a number, such as BW3")
    kind, micro_batch, stage = parts.groups()
    return Action(kind, rank if stage is None else int(stage), int(micro_batch))  # type: ignore[arg-type]


def peak_in_flight(actions: Iterable[Action], kept: Mapping[int, int] | None = None) -> int:
    """The most (stage, micro-batch) pairs that a rank holds for backward passes still to come: each from F until all
    its gradients are made. With `kept`, what each stage keeps of a micro-batch, the most of that.
    """
    change = {"F": 1, "BW": -1, "B": 0, "W": -1, "U": 0}
    steps = (change[action.kind] * (kept[action.stage] if kept else 1) for action in actions)
    return max(itertools.accumulate(steps, initial=0))

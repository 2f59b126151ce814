"""`course plan`: find the model and the GPU that were meant, and print the plans that the planner found."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from course_lib.model import hardware, zoo
from course_lib.predict.planner import Cluster, Constants, Plans, fitted, plan
from course_lib.predict.setup import Setup

_MODELS: dict[str, Any] = {
    each.name: each for each in (*zoo.ALL, *(m for m in vars(zoo).values() if isinstance(m, zoo.ExpertModel)))
}
_GPUS = {gpu.name: gpu for gpu in hardware.ALL}
_SIZES = ("tp", "pp", "dp", "cp", "ep", "ZeRO", "mbs", "v")
_TOKENS = 4 * 2**20
"""Tokens of a step where no batch is given: the usual number of large runs."""


def planned(
    model: str, gpus: int, of: str, batch: int | None = None, seq: int | None = None, node: int = 8, like: str = ""
) -> Plans:
    """The plans for a model and a GPU by name, such as "llama3-70b" and "H100".

    Raises:
        ValueError: a name is unknown (the message has the ones near it), no plan fits, or `Setup` refuses `seq`.
    """
    shape, gpu = _named("model", model, _MODELS), _named("GPU", of, _GPUS)
    tokens = Setup(shape, 1, seq).seq  # type: ignore[arg-type]  # the model's context, or a refusal
    constants = None
    if like:
        usual = {name: each for name, each in fitted().items() if not re.search("fp[48]|float8", name.lower())}
        constants = Constants(**_named("machine", like, usual)["constants"])  # plans are in bf16
    cluster = Cluster(gpu, gpus, min(node, gpus), constants)
    return plan(shape, cluster, max(1, _TOKENS // tokens) if batch is None else batch, seq)


def has_experts(model: str) -> bool:
    """Whether the model of this name has experts."""
    return isinstance(_named("model", model, _MODELS), zoo.ExpertModel)


def _named(kind: str, given: str, known: dict[str, Any]) -> Any:
    """The entry whose name, without blanks and hyphens, is or begins like the given one."""

    def plain(name: str) -> str:
        return re.sub(r"[\s\-_]", "", name).lower()

    by_plain = {plain(name): name for name in known}
    wanted = plain(given)
    found = (
        [by_plain[wanted]]
        if wanted in by_plain
        else [name for short, name in by_plain.items() if short.startswith(wanted)]
    )
    if len(found) == 1:
        return known[found[0]]
    near = found or [by_plain[short] for short in difflib.get_close_matches(wanted, by_plain, 5, 0.4)] or list(known)
    raise ValueError(f"{'no' if not found else 'more than one'} {kind} {given!r}: say one of {', '.join(near)}")


def show(plans: Plans, console: Console, most: int = 10, with_map: bool = False) -> None:
    """Print the best plans as a table, the map if it is wanted, the command of the first, and why others are none."""
    wide = Console(file=console.file, width=max(console.width, 120))  # a narrow table would cut digits
    wide.print(as_table(plans, most), *([as_map(plans)] if with_map else []))
    console.print(plans.best[0].torchrun(), markup=False, soft_wrap=True)
    console.print(f"\n{plans.looked_at:,} layouts looked at. No plans, for this reason:")
    for reason, count in list(plans.refused.items())[:8]:
        console.print(f"{count:>8,}  {reason}", markup=False)


def as_map(plans: Plans) -> Table:
    """The seconds of the fastest plan that fits, for each number of tensor ranks and of stages."""
    steps = {(each.tensor, each.pipeline): each.step_s for each in plans.map}
    tensors, pipelines = (sorted(set(sizes)) for sizes in zip(*steps))
    shown = Table(box=SIMPLE_HEAD, title="step, s: tp down, pp across", title_justify="left")
    for name in ("tp", *map(str, pipelines)):
        shown.add_column(name, justify="right")
    cells = {mesh: f"{step:.3g}" for mesh, step in steps.items()}
    fastest = min(steps, key=lambda mesh: steps[mesh])
    cells[fastest] = f"[bold]{cells[fastest]}[/]"
    for t in tensors:
        shown.add_row(str(t), *(cells.get((t, p), "-") for p in pipelines))
    return shown


def as_table(plans: Plans, most: int) -> Table:
    """A line for each of the best plans."""
    shown = Table(box=SIMPLE_HEAD)
    for name in (*_SIZES, "recompute", "step", "bubble", "exposed", "MFU", "first", "last"):
        shown.add_column(name, justify="right")
    for p in plans.best[:most]:
        sizes = (p.tensor, p.pipeline, p.data, p.context, p.expert, p.zero, p.micro_batch, p.chunks)
        costs: Iterable[str] = (
            "full" if p.recompute else "none", f"{p.step_s:.3g} s", f"{p.bubble_s / p.step_s:.0%}",
            f"{p.exposed_s / p.step_s:.0%}", f"{p.mfu:.0%}", f"{p.first_gb:.1f} GB", f"{p.last_gb:.1f} GB",
        )  # fmt: skip
        shown.add_row(*map(str, sizes), *costs)
    return shown

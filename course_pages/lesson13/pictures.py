"""Pictures of a layer of experts: queues and journeys of tokens, training runs, weights and tokens on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from course_kit.notebook.picture import GRID, INK, MUTED, Picture, legend, line_look, new_figure, note, series_color
from course_lib.model.experts import ExpertConfig
from course_lib.parallel.experts import Holding, holdings
from course_lib.parallel.mesh import Mesh
from course_pages.lesson13.trials import Run

CHOICES = "first choice", "second choice"
DROPPED = "#F3F4F6"


def queues(
    experts_Tk: Tensor, kept_Tk: Tensor, experts: int, capacity: int | None, *, caption: str, alt: str = ""
) -> Picture:
    """Each expert's queue from the bottom up, in the order in which places are given; those above the line get none.

    Args:
        experts_Tk: experts that each token goes to, its first choice first; at most two.
        kept_Tk: whether each of these choices found a place.
        experts: number of experts.
        capacity: places of each; None if there is no limit.
    """
    figure, (axes,) = new_figure(height=2.9)
    axes.grid(False)
    heights, dropped = [0] * experts, int((~kept_Tk).sum())
    for choice in range(experts_Tk.shape[1]):
        for token, expert in enumerate(experts_Tk[:, choice].tolist()):
            kept = bool(kept_Tk[token, choice])
            place = (expert - 0.4, heights[expert] + 0.06)
            color, edge, hatch = (
                (series_color(choice), "white", None) if kept else (DROPPED, series_color(choice), "////")
            )
            axes.add_patch(Rectangle(place, 0.8, 0.88, facecolor=color, edgecolor=edge, hatch=hatch, lw=0.6))
            heights[expert] += 1
    if capacity is not None:
        axes.axhline(capacity + 0.02, color=INK, lw=1.4)
        note(axes, f"capacity {capacity}", (experts - 0.45, capacity), ha="right", va="bottom", size=9)
    axes.set(xlim=(-0.6, experts - 0.4), ylim=(0, max(*heights, capacity or 0) + 1.2))
    axes.set_xticks(range(experts), [f"expert {number}" if experts <= 8 else str(number) for number in range(experts)])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("choices in the queue")
    for choice in range(experts_Tk.shape[1]):
        axes.bar(0, 0, color=series_color(choice), label=CHOICES[choice])
    axes.bar(0, 0, color=DROPPED, hatch="////", edgecolor=MUTED, label="dropped")
    legend(figure, "upper center", 3)
    told = ", ".join(f"expert {number}: {height}" for number, height in enumerate(heights))
    places = "no limit" if capacity is None else f"{capacity} places each"
    return Picture(figure, caption=caption, alt=alt or f"Queues of {told}; {places}; {dropped} choices are dropped.")


def journey(wanted_PT: Tensor, experts: int, *, caption: str) -> Picture:
    """Tokens at home, at their experts, and home again: each in its expert's colour, with its rank's number.

    Args:
        wanted_PT: the expert that each rank's tokens go to, one choice each.
        experts: number of experts, of which each rank has equally many.
    """
    ranks, own = len(wanted_PT), experts // len(wanted_PT)
    at_home = [[(rank, expert) for expert in row] for rank, row in enumerate(wanted_PT.tolist())]
    everyone = sorted((token for row in at_home for token in row), key=lambda token: token[1])
    at_experts = [[token for token in everyone if token[1] // own == rank] for rank in range(ranks)]
    figure, panels = new_figure(3, 1, height=3.4)
    widest = max(map(len, at_home + at_experts))
    stages = {"at home": at_home, "at the experts": at_experts, "home again": at_home}
    for axes, (stage, holds) in zip(panels, stages.items()):
        axes.set_axis_off()
        axes.set(xlim=(-0.1, ranks * (widest + 1)), ylim=(-0.25, 1.45))
        axes.set_title(stage, size=9.5, color=MUTED, loc="left", pad=0)
        for rank, tokens in enumerate(holds):
            left = rank * (widest + 1)
            axes.plot([left, left + widest], [-0.12, -0.12], color=INK, lw=1.2)
            whose = f"rank {rank}" + (f": {_experts_of(rank, own)}" if stage == "at the experts" else "")
            axes.text(left + widest / 2, 1.12, whose, ha="center", color=INK, size=9.5)
            for place, (source, expert) in enumerate(tokens):
                axes.add_patch(Rectangle((left + place + 0.05, 0), 0.9, 0.9, facecolor=series_color(expert)))
                axes.text(left + place + 0.5, 0.43, str(source), ha="center", va="center", color="white", size=9)
    told = ", ".join(f"rank {rank}: {len(tokens)}" for rank, tokens in enumerate(at_experts))
    alt = f"{len(everyone)} tokens of {ranks} ranks, equally many on each. At the experts there are, on {told}. "
    alt += "Then each is home again, where it was."
    return Picture(figure, caption=caption, alt=alt)


def _experts_of(rank: int, own: int) -> str:
    return "expert" + "s" * (own > 1) + " " + ", ".join(str(rank * own + each) for each in range(own))


def by_seed(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], *, caption: str,
    levels: Mapping[str, Mapping[str, float]] | None = None, every: int = 1,
) -> Picture:  # fmt: skip
    """A panel for each quantity: a colour for each kind of model, a thin line for each seed.

    Args:
        panels: label of the vertical axis → kind → for each seed, a value for each point.
        levels: label of the vertical axis → name → a value to hold the lines against, dotted.
        every: steps from one point to the next.
    """
    figure, axes_of = new_figure(1, len(panels), height=3.2)
    told = []
    for axes, (label, kinds) in zip(axes_of, panels.items()):
        for index, (kind, seeds) in enumerate(kinds.items()):
            for number, values in enumerate(seeds):
                steps = every * np.arange(1, len(values) + 1)
                axes.plot(steps, values, lw=1.3, label="" if number else kind, **line_look(index))
            if ends := [values[-1] for values in seeds]:
                told.append(f"{label}, {kind}: {min(ends):.3g} to {max(ends):.3g} at last")
        longest = every * max(len(values) for seeds in kinds.values() for values in seeds)
        for name, level in (levels or {}).get(label, {}).items():
            axes.axhline(level, color=INK, lw=1.1, ls=":")
            side = "bottom" if all(values[-1] < level for seeds in kinds.values() for values in seeds) else "top"
            note(axes, name, (longest, level), (0, 3 if side == "bottom" else -3), ha="right", va=side, size=9)
        axes.set(xlabel="step", ylabel=label, xlim=(0, longest), ylim=(0, None))
    handles = axes_of[0].get_legend_handles_labels()[0]
    legend(figure, "upper center", min(4, len(handles)), handles=handles)
    return Picture(figure, caption=caption, alt=f"A line for each seed. {'; '.join(told)}.")


def crowds(runs: Mapping[str, Sequence[Run]], letters: float, *, caption: str) -> Picture:
    """Training runs: the loss beside the letters' entropy, and the share of the expert that most tokens want.

    Args:
        runs: kind of model → its runs, a seed each.
        letters: the entropy of letters, in nats.
    """
    loss, share = "loss (nats per token)", "the favourite's share (%)"
    panels = {loss: {kind: [run.losses for run in seeds] for kind, seeds in runs.items()}}
    panels[share] = {
        kind: [np.convolve(run.largest, np.full(10, 10), "valid").tolist() for run in seeds if run.largest]
        for kind, seeds in runs.items()
    }  # means of ten steps, in percent: crowds move from step to step
    levels = {loss: {"letters' entropy": letters}, share: {"balance": 12.5}}
    return by_seed(panels, levels=levels, caption=caption)


def who_holds(mesh: Mesh, config: ExpertConfig, tokens: int, *, caption: str) -> Picture:
    """Parts of the layer on each rank: of the experts (a row for each, as wide as its features) and of the tokens.

    Args:
        mesh: of at most 8 ranks, along "data", "expert" and "tensor".
        config: the layer.
        tokens: of the whole batch.

    Raises:
        ValueError: too many ranks, or as `holdings`.
    """
    if mesh.size > 8:
        raise ValueError(f"{mesh.size} ranks: the picture shows 8 at most")
    has = holdings(mesh, config, tokens)
    figure, panels = new_figure(1, mesh.size, height=2.4)
    told = []
    for rank, (axes, held) in enumerate(zip(panels, has)):
        axes.set_axis_off()
        axes.grid(False)
        place = "\n".join(f"{axis} {position}" for axis, position in mesh.coordinates(rank).items())
        axes.set_title(f"rank {rank}\n{place}", size=8.5, color=INK)
        _weights(axes, held, config)
        _tokens(axes, held, tokens)
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.75, 1.2))
        if rank == 0:
            axes.text(0, 1.04, "experts", size=8, color=MUTED, va="bottom")
            axes.text(0, -0.27, "tokens", size=8, color=MUTED, va="bottom")
        parts = zip(("experts", "hidden features", "tokens"), held)
        told.append(f"rank {rank}: " + ", ".join(f"{name} {part.start} to {part.stop - 1}" for name, part in parts))
    return Picture(figure, caption=caption, alt=f"{mesh.size} ranks and what they hold. {'; '.join(told)}.")


def _weights(axes: Axes, held: Holding, config: ExpertConfig) -> None:
    """A row for each expert, the first on top."""
    height = 1 / config.experts
    for expert in range(config.experts):
        bottom = 1 - (expert + 1) * height
        axes.add_patch(Rectangle((0, bottom), 1, height, facecolor="white", edgecolor=GRID, lw=0.8))
        if expert in held.experts:
            left, width = held.hidden.start / config.hidden, len(held.hidden) / config.hidden
            axes.add_patch(
                Rectangle((left, bottom), width, height, facecolor=series_color(0), edgecolor="white", lw=0.8)
            )


def _tokens(axes: Axes, held: Holding, tokens: int) -> None:
    """A strip below the experts, filled where the rank has tokens."""
    axes.add_patch(Rectangle((0, -0.5), 1, 0.2, facecolor="white", edgecolor=GRID, lw=0.8))
    left, width = held.tokens.start / tokens, len(held.tokens) / tokens
    axes.add_patch(Rectangle((left, -0.5), width, 0.2, facecolor=series_color(1), edgecolor="white", lw=0.8))

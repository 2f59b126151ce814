"""Loss curves: beside readers with a given knowledge, beside distances of the weights, and beside another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from course_kit.notebook.picture import INK, Picture, legend, line_look, new_figure, note

UNIT = "nats per token"


def loss_curves(
    curves: Mapping[str, Sequence[float]], *, levels: Mapping[str, float] | None = None, unit: str = UNIT, caption: str,
    alt: str,
) -> Picture:  # fmt: skip
    """The loss of one or more runs over their steps.

    Args:
        curves: name → loss of each step.
        levels: name → loss of a reader who knows just that much, drawn as a dotted line: "knows nothing" (the log of
            the vocabulary's size) at the top, the entropy of the source at the bottom.
        unit: unit of the losses.
    """
    levels = levels or {}
    figure, (axes,) = new_figure(height=3.0)
    longest = max(len(losses) for losses in curves.values())
    for index, (name, losses) in enumerate(curves.items()):
        axes.plot(losses, linewidth=1.8, label=name, **line_look(index))
    for name, level in levels.items():
        axes.axhline(level, color=INK, linewidth=1.2, linestyle=":")
        note(axes, name, (longest, level), (-2, 3), ha="right", va="bottom", size=9)
    finite = [loss for losses in curves.values() for loss in losses if math.isfinite(loss)]
    lowest, highest = min([*finite, *levels.values()]), max([*finite, *levels.values()])
    room = 0.12 * (highest - lowest) or 0.5
    axes.set(xlabel="step", ylabel=f"loss ({unit})", ylim=(lowest - room, highest + room), xlim=(0, longest))
    if len(curves) > 1:
        axes.legend(frameon=False, loc="upper right")
    return Picture(figure, caption=caption, alt=alt)


def loss_bands(
    runs: Mapping[str, Sequence[Sequence[float]]], *, levels: Mapping[str, float] | None = None, caption: str
) -> Picture:
    """Several runs of each kind: the band between the best and the worst of them, and their mean as a line.

    Args:
        runs: name → losses of each step, for each of its runs; means of ten steps are drawn.
        levels: as in `loss_curves`.

    Raises:
        ValueError: a name has a single run, which has no spread.
    """
    if lonely := [name for name, each in runs.items() if len(each) < 2]:
        raise ValueError(f"{lonely} have fewer than two runs; a band needs the spread of several, three or more")
    figure, (axes,) = new_figure(height=3.4)
    told = []
    for index, (name, each) in enumerate(runs.items()):
        smooth = np.array([_mean_of_ten(losses) for losses in each])
        look, steps = line_look(index), range(smooth.shape[1])
        axes.plot(steps, smooth.mean(0), linewidth=1.8, label=name, **look)
        axes.fill_between(steps, smooth.min(0), smooth.max(0), color=look["color"], alpha=0.18, linewidth=0)
        told.append(f"{name} ends between {smooth[:, -1].min():.2f} and {smooth[:, -1].max():.2f}")
    longest = max(len(losses) for each in runs.values() for losses in each)
    for name, level in (levels or {}).items():
        axes.axhline(level, color=INK, linewidth=1.2, linestyle=":")
        note(axes, name, (longest, level), (-2, 3), ha="right", va="bottom", size=9)
    axes.set(xlabel="step", ylabel=f"loss ({UNIT})", xlim=(0, longest))
    axes.legend(frameon=False, loc="upper right")
    return Picture(figure, caption=caption, alt=f"Bands of losses over the steps. {'; '.join(told)}.")


def losses_and_distances(
    losses: Mapping[str, Sequence[float]], distances: Mapping[str, Sequence[float]], *, caption: str
) -> Picture:
    """Training runs: the loss of each over the first one's, and the distance of its weights from their start.

    Args:
        losses: name → loss of each step, in nats per token; the differences are means of ten steps.
        distances: name → the distance after each step.
    """
    figure, (left, right) = new_figure(columns=2, height=3.4)
    first, told = next(iter(losses)), []
    for index, name in enumerate(losses):
        above = [loss - reference for loss, reference in zip(losses[name], losses[first], strict=True)]
        left.plot(_mean_of_ten(above), linewidth=1.8, label=name, **line_look(index))
        right.plot(distances[name], linewidth=1.8, **line_look(index))
        end = _end(losses[name]) - _end(losses[first])
        told.append(f"{name}: {end:+.2f} nats, distance {distances[name][-1]:.3g}")
    left.set(xlabel="step", ylabel=f"loss above {first} ({UNIT})")
    right.set(xlabel="step", ylabel="distance from the start", ylim=(0, None))
    left.legend(frameon=False, labelcolor=INK)
    return Picture(figure, caption=caption, alt=f"Two panels. At the end, against {first}: {'; '.join(told)}.")


def losses_against_first(losses: Mapping[str, Sequence[float]], *, caption: str, unit: str = UNIT) -> Picture:
    """The losses of several runs, and each one's distance from the first; smoothed over ten steps."""
    figure, (left, right) = new_figure(columns=2, height=3.8)
    smooth = {name: np.convolve(values, np.ones(10) / 10, "valid") for name, values in losses.items()}
    first, reference = next(iter(smooth.items()))
    for index, (name, values) in enumerate(smooth.items()):
        left.plot(values, linewidth=1.7, label=name, **line_look(index))
        right.plot(100 * (values / reference - 1), linewidth=1.7, **line_look(index))
    left.set(xlabel="step", ylabel=f"loss ({unit})")
    right.set(xlabel="step", ylabel=f"above {first} (%)")
    right.set_yscale("symlog", linthresh=0.1)  # a tenth of a per cent and ten per cent, both to be seen
    right.set_yticks([-1, -0.1, 0, 0.1, 1, 10], ["−1", "−0.1", "0", "0.1", "1", "10"])
    right.set_ylim(-3, 30)
    legend(figure, "upper center", 3, fontsize=9)
    ends = (f"{name} {100 * (_end(values) / _end(losses[first]) - 1):+.1f} %" for name, values in losses.items())
    alt = f"Loss over the steps. The mean of the last 20 losses, against {first}: {', '.join(ends)}."
    return Picture(figure, caption=caption, alt=alt)


def _mean_of_ten(values: Sequence[float]) -> list[float]:
    """The mean of each value and up to nine before it."""
    return [float(np.mean(values[max(0, i - 9) : i + 1])) for i in range(len(values))]


def _end(values: Sequence[float]) -> float:
    """The mean of the last twenty."""
    return float(np.mean(values[-20:]))

"""The loss scale, slid across a real gradient histogram: what becomes 0, what loses digits, what becomes inf.

`scale_data` counts beforehand, for every place of the slider, what a cast would do to the gradients. Those tables
travel with the widget, so the browser (`scale.js`) only draws, and the explorer stays alive in a page without Python.

Lesson 04 opens this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

import anywidget
import traitlets
from torch import Tensor

from course_lib.explore import browser
from course_lib.figures.mixed_precision import gradient_histograms
from course_lib.numerics import BF16, FP8_E5M2, FP16, FloatFormat
from course_lib.train.gradients import CastCounts, GradientSizes

POWERS = range(-8, 41)
"""The scale is 2 to one of these."""

FORMATS: dict[str, FloatFormat] = {fmt.name: fmt for fmt in (FP16, BF16, FP8_E5M2)}


def scale_data(sizes: Mapping[str, GradientSizes]) -> dict[str, Any]:
    """All that the browser draws, as plain numbers.

    Returns:
        "powers": first and last power of the slider. "formats": name → the powers of two of its smallest number, its
        smallest normal number, and the first that is beyond it. "groups": name → "first" (the lowest binade), "counts"
        (numbers in each binade, from there on) and "casts": format → for each place of the slider [flushed, subnormal,
        normal, overflowed].
    """
    formats = {
        name: [1 - fmt.bias - fmt.fraction_bits, 1 - fmt.bias, fmt.max_exponent + 1] for name, fmt in FORMATS.items()
    }
    groups = {}
    for group, of_group in sizes.items():
        binades = of_group.binades()
        casts = {
            name: [list(astuple(of_group.cast(fmt, 2.0**power))) for power in POWERS] for name, fmt in FORMATS.items()
        }
        groups[group] = {"first": min(binades), "counts": list(binades.values()), "casts": casts}
    return {"powers": [POWERS[0], POWERS[-1]], "formats": formats, "groups": groups}


class ScaleExplorer(anywidget.AnyWidget):
    """Gradients under a loss scale.

    Set `explorer.power = 16` and the drawing follows; move the slider and `explorer.power` follows.

    Args:
        gradients: name → tensors that are looked at together, such as {"weights": [p.grad for p in parameters]}.
        power: the scale is 2 to this.
        number_format: "fp16", "bf16" or "fp8_e5m2".

    Raises:
        ValueError: no group, gradients that are all 0 or not finite, a power outside of the slider or an unknown
            format; or, as `traitlets.TraitError`, when it is set later.
    """

    _esm = browser.script("scale")
    _css = browser.style("scale")
    data = traitlets.Dict().tag(sync=True)
    power = traitlets.Int(0, min=POWERS[0], max=POWERS[-1]).tag(sync=True)
    group = traitlets.Unicode().tag(sync=True)
    number_format = traitlets.Enum(tuple(FORMATS), "fp16").tag(sync=True)

    def __init__(self, gradients: Mapping[str, Iterable[Tensor]], power: int = 0, number_format: str = "fp16") -> None:
        if not gradients or power not in POWERS or number_format not in FORMATS:
            raise ValueError(
                f"{len(gradients)} groups, power={power}, number_format={number_format!r}: needed are at least one "
                f"group, a power from {POWERS[0]} to {POWERS[-1]}, and one of {', '.join(FORMATS)}"
            )
        self.sizes = {name: GradientSizes(tensors) for name, tensors in gradients.items()}
        group = next(iter(self.sizes))
        super().__init__(data=scale_data(self.sizes), power=power, group=group, number_format=number_format)

    @traitlets.validate("group")
    def _known(self, proposal: Any) -> str:
        if proposal["value"] not in self.sizes:
            raise traitlets.TraitError(f"group={proposal['value']!r}: known are {', '.join(self.sizes)}")
        return proposal["value"]

    @property
    def counts(self) -> CastCounts:
        """What the explorer shows now."""
        return self.sizes[self.group].cast(FORMATS[self.number_format], 2.0**self.power)

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; the shares if empty.
        """
        counts, fmt = self.counts, FORMATS[self.number_format]
        shares = [100 * count / counts.total for count in astuple(counts)]
        gradient_histograms(
            {f"scale 2^{self.power}": (self.sizes[self.group], 2.0**self.power)},
            fmt,
            caption=caption or "The scale moves the whole histogram; the format stays where it is.",
            alt=alt
            or f"Histogram of the gradients of {self.group} times 2^{self.power}, by powers of two, before the window "
            f"of {fmt}: {shares[0]:.1f} % become 0, {shares[1]:.0f} % are subnormal, {shares[2]:.0f} % normal, "
            f"{shares[3]:.1f} % overflow.",
        ).show(widget=self)

"""The loss scale, slid across a real gradient histogram: numbers that become 0, lose digits, or become inf.

`scale_data` counts beforehand, for every place of the slider, the fates of the gradients under a cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from torch import Tensor

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_lib.numerics import BF16, FP8_E5M2, FP16, FloatFormat
from course_lib.train.gradients import CastCounts, GradientSizes
from course_pages.lesson04.pictures import AXIS, borders, gradient_histograms

POWERS = range(-8, 41)
"""Exponents of the scale, a power of two."""

FORMATS: dict[str, FloatFormat] = {fmt.name: fmt for fmt in (FP16, BF16, FP8_E5M2)}


def _power(k: int) -> str:
    return "2" + str(k).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _in_full(k: int) -> str:
    """A scale in words: "2⁻⁸ = 1/256"."""
    return f"{_power(k)} = {2**k:,}" if k >= 0 else f"{_power(k)} = 1/{2**-k}"


def _window(fmt: FloatFormat) -> dict[str, Any]:
    flushed, normal, beyond = borders(fmt)
    if beyond > AXIS[-1]:
        reach = f"has normal numbers from {_power(normal)} to {_power(beyond)}: beyond both ends of this axis."
    else:
        reach = (f"(shaded, pale and full): subnormal from {_power(flushed + 1)}, normal from {_power(normal)}, inf "
                 f"from about {_power(beyond)}.")  # fmt: skip
    return {"borders": borders(fmt), "reach": f"{fmt.name} {reach}"}


def scale_data(sizes: Mapping[str, GradientSizes]) -> dict[str, Any]:
    """Numbers that the browser draws.

    Returns:
        "formats": name → "borders" (the powers of two from which on numbers are no longer flushed to 0, are normal, are
        too large), and "reach", the same in words. "groups": name → "first" (the lowest binade), "counts"
        (numbers in each binade, from there on) and "casts": format → for each place of the slider [flushed, subnormal,
        normal, overflowed]. "ticks": powers of two on the axis, and their words.
    """
    formats = {name: _window(fmt) for name, fmt in FORMATS.items()}
    groups = {}
    for group, of_group in sizes.items():
        binades = of_group.binades()
        casts = {
            name: [list(astuple(of_group.cast(fmt, 2.0**power))) for power in POWERS] for name, fmt in FORMATS.items()
        }
        groups[group] = {"first": min(binades), "counts": list(binades.values()), "casts": casts}
    return {"formats": formats, "groups": groups, "ticks": [[k, _power(k)] for k in AXIS]}


class ScaleExplorer(Explorer):
    """Gradients under a loss scale.

    Args:
        gradients: name → tensors that are looked at together, such as {"weights": [p.grad for p in parameters]}.
        chosen: power, the scale is 2 to this; number_format, "fp16", "bf16" or "fp8_e5m2"; group, one of `gradients`.

    Raises:
        ValueError: no group, gradients that are all 0 or not finite, a power outside of the slider or an unknown
            format; or, as `traitlets.TraitError`, when one is set later.
    """

    caption = "The scale moves the whole histogram; the format stays where it is."
    power = Control("Loss scale", POWERS, 0, _in_full)
    group = Control("Gradients of", kind="choice")
    number_format = Control("Format", list(FORMATS), "fp16", kind="choice")

    def __init__(self, gradients: Mapping[str, Iterable[Tensor]], **chosen: Any) -> None:
        if not gradients:
            raise ValueError("ScaleExplorer needs some gradients: name → tensors, at least one group")
        self.sizes = {name: GradientSizes(tensors) for name, tensors in gradients.items()}
        super().__init__({"group": list(self.sizes)}, **chosen)

    @property
    def counts(self) -> CastCounts:
        """Fates of the gradients in the chosen format, under the chosen scale."""
        return self.sizes[self.group].cast(FORMATS[self.number_format], 2.0**self.power)

    def _table(self) -> dict[str, Any]:
        return scale_data(self.sizes)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        shown = {f"{self.group}, scale 2^{self.power}": (self.sizes[self.group], 2.0**self.power)}
        return gradient_histograms(shown, FORMATS[self.number_format], caption=caption, alt=alt)

    def _told(self) -> str:
        return ""  # the picture tells its shares itself

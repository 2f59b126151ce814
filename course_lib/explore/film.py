"""The film of a recomputed chain: who holds what, moment by moment, and the peak for every K.

Move K, and see the triangle of a plain step fall apart into small ones. The arithmetic runs in the browser (`film.js`),
so the explorer answers at once and stays alive in a page without Python. `predict.Chain.film` computes the same in
Python, and the picture for places that run no JavaScript is drawn from it.

Lesson 03 opens this module.
"""

from __future__ import annotations

import anywidget
import traitlets

from course_lib.explore import browser
from course_lib.figures.recompute import chain_film
from course_lib.predict.chain import Chain

LAYERS, RATIO = (2, 32), (1, 20)
"""Smallest and largest value of these sliders."""


class FilmExplorer(anywidget.AnyWidget):
    """A chain of equal layers through one training step, with its memory.

    Set `explorer.every = 4` and the drawing follows; move the slider and `explorer.every` follows.

    Args:
        layers: N.
        every: K, layers in a segment; 0 keeps everything.
        ratio: what a layer saves, in units of its input (which it does not save itself).

    Raises:
        ValueError: a number is outside of its slider; or, as `traitlets.TraitError`, when it is set later.
    """

    _esm = browser.script("film")
    _css = browser.style("film")
    layers = traitlets.Int(16, min=LAYERS[0], max=LAYERS[1]).tag(sync=True)
    every = traitlets.Int(4, min=0, max=LAYERS[1]).tag(sync=True)
    ratio = traitlets.Int(1, min=RATIO[0], max=RATIO[1]).tag(sync=True)

    def __init__(self, layers: int = 16, every: int = 4, ratio: int = 1) -> None:
        inside = LAYERS[0] <= layers <= LAYERS[1] and RATIO[0] <= ratio <= RATIO[1]
        if not inside or not 0 <= every <= layers:
            raise ValueError(
                f"layers={layers}, every={every}, ratio={ratio}: layers must be {LAYERS[0]} to {LAYERS[1]}, every 0 "
                f"(keep everything) to the number of layers, and ratio {RATIO[0]} to {RATIO[1]}"
            )
        super().__init__(layers=layers, every=every, ratio=ratio)

    @property
    def chain(self) -> Chain:
        """What the explorer shows now; a byte stands for one layer's input."""
        return Chain(self.layers, boundary_bytes=1, saved_bytes=self.ratio)

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; the peaks if empty.
        """
        every = self.every or None
        peak, plain = int(self.chain.peak(every)), int(self.chain.peak(None))
        kept = f"one input every {every} layers" if every else "everything"
        chain_film(
            self.chain,
            every,
            caption=caption or "Each small triangle is a segment that is computed again, used, and forgotten.",
            alt=alt
            or f"A chain of {self.layers} layers through one step. Keeping {kept}, it holds at most the size of "
            f"{peak} inputs; keeping everything, of {plain}.",
        ).show(widget=self)

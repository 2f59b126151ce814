"""The film of a recomputed chain: the tensors held, moment by moment, and the peak for every K.

Move K, and see the triangle of a plain step fall apart into small ones. All films are
those of `predict.Chain`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_lib.predict.chain import Chain
from course_pages.lesson03.pictures import chain_film

LAYERS, RATIO = range(2, 33), range(1, 21)
"""Values of two sliders."""


@cache
def film_table() -> dict[str, Any]:
    """The films of the longest chain, for every K from 0, which keeps everything; a byte stands for one layer's input.

    Those of a shorter chain are the same without the layers that it lacks.

    Returns:
        "phases": [name, duration] of each. "films": for each K and frame [phase's number, layer, inputs of segments
        that are held, layers whose insides are held].
    """
    chain = Chain(LAYERS[-1], boundary_bytes=1, saved_bytes=1)
    all_films = [chain.film(every or None) for every in range(chain.layers + 1)]
    durations = {frame.phase: frame.duration for frame in all_films[1]}
    number = {phase: i for i, phase in enumerate(durations)}
    rows = [[[number[f.phase], f.layer, f.boundaries, f.inside] for f in film] for film in all_films]
    return {"phases": list(durations.items()), "films": rows}


class FilmExplorer(Explorer):
    """A chain of equal layers through one training step, with its memory.

    Args:
        layers: N.
        every: K, layers in a segment; 0 keeps everything.
        ratio: size of the tensors that a layer saves, in units of its input (which the layer does not save).
    """

    caption = "Each small triangle is a segment that is computed again, used, and forgotten."
    every = Control(
        "K: layers in a segment", range(LAYERS[-1] + 1), 4, lambda k: str(k or "keep everything"),
        limit=("layers", lambda layers: layers),
    )  # fmt: skip
    layers = Control("N: layers in the chain", LAYERS, 16)
    ratio = Control("A layer saves", RATIO, 1, "{} × its input".format)
    _table = staticmethod(film_table)

    @property
    def chain(self) -> Chain:
        """Chain that the controls describe; a byte stands for one layer's input."""
        return Chain(self.layers, boundary_bytes=1, saved_bytes=self.ratio)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return chain_film(self.chain, self.every or None, caption=caption, alt=alt)

    def _told(self) -> str:
        peak, plain = int(self.chain.peak(self.every or None)), int(self.chain.peak(None))
        kept = f"one input every {self.every} layers" if self.every else "everything"
        return (
            f"A chain of {self.layers} layers through one step. Keeping {kept}, it holds at most the size of {peak} "
            f"inputs; keeping everything, of {plain}."
        )

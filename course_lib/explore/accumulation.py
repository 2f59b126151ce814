"""Batch × accumulation × memory: into how many pieces must a batch be cut to fit a GPU, and what is left to cut?

Move the micro-batch and see the activations shrink while everything else stays. All numbers come from
`predict.peak`; they travel to the browser as a table, so the explorer stays alive in a page without Python.

Lesson 05 opens this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import anywidget
import traitlets

from course_lib.explore import browser
from course_lib.figures.memory_ladder import peaks_by_micro_batch
from course_lib.model import hardware
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Optimizer, PeakAccount, Setup, peak

GPT2 = GPTConfig(layers=12, width=768, heads=12, vocab_size=50_257, context=1024)
"""GPT-2 small, 124 million parameters."""

SIZES = tuple(2**k for k in range(10))
"""Global batches and micro-batches to choose from: 1 to 512."""

GPUS = {gpu.name: gpu.memory for gpu in hardware.ALL}


@dataclass(frozen=True)
class Cut:
    """A batch in equal pieces.

    Attributes:
        micro_batch: sequences in a piece.
        pieces: how many forward and backward passes the step has.
        peak: bytes at the worst moment of the step.
    """

    micro_batch: int
    pieces: int
    peak: PeakAccount


def accumulation_cuts(config: GPTConfig, seq: int, global_batch: int, optimizer: Optimizer = "adam") -> list[Cut]:
    """All cuts of a batch into pieces of 1, 2, 4, … sequences, and the peak of each: fp32, nothing recomputed.

    Raises:
        ValueError: the batch is not one of `SIZES`; and as `predict.peak`.
    """
    if global_batch not in SIZES:
        raise ValueError(f"global_batch={global_batch} given; it must be one of {SIZES}")
    whole = Setup(config, global_batch, seq, optimizer=optimizer)
    return [
        Cut(micro, global_batch // micro, peak(whole.with_(micro_batch=micro)))
        for micro in SIZES
        if micro <= global_batch
    ]


def accumulation_table(config: GPTConfig, seq: int) -> dict[str, dict[str, list[list[int]]]]:
    """Optimizer → global batch → for each micro-batch the bytes of the five categories: what the browser draws."""
    return {
        optimizer: {
            str(batch): [list(map(int, cut.peak.values())) for cut in accumulation_cuts(config, seq, batch, optimizer)]
            for batch in SIZES
        }
        for optimizer in get_args(Optimizer)
    }


class AccumulationExplorer(anywidget.AnyWidget):
    """A batch in pieces, against the memory of a GPU.

    Set `explorer.micro_batch = 4` and the drawing follows; move the slider and `explorer.micro_batch` follows.

    Args:
        config: the model; GPT-2 small by default.
        seq: tokens in a sequence; the model's context by default.
        global_batch, micro_batch: from `SIZES`.
        optimizer: "sgd", "momentum" or "adam".
        gpu: a name from `model.hardware`.

    Raises:
        ValueError: a number or a name is not to be chosen; or, as `traitlets.TraitError`, when it is set later.
    """

    _esm = browser.script("accumulation")
    _css = browser.style("accumulation")
    table = traitlets.Dict().tag(sync=True)
    gpus = traitlets.Dict().tag(sync=True)
    global_batch = traitlets.Enum(SIZES, 64).tag(sync=True)
    micro_batch = traitlets.Enum(SIZES, 64).tag(sync=True)
    optimizer = traitlets.Enum(get_args(Optimizer), "adam").tag(sync=True)
    gpu = traitlets.Enum(tuple(GPUS), "T4").tag(sync=True)

    def __init__(
        self, config: GPTConfig = GPT2, seq: int | None = None, global_batch: int = 64, micro_batch: int = 64,
        optimizer: Optimizer = "adam", gpu: str = "T4",
    ) -> None:  # fmt: skip
        if not {global_batch, micro_batch} <= set(SIZES) or micro_batch > global_batch or gpu not in GPUS:
            raise ValueError(
                f"global_batch={global_batch}, micro_batch={micro_batch}, gpu={gpu!r}: both batches must be of {SIZES},"
                f" the piece no larger than the whole, and the GPU one of {', '.join(GPUS)}"
            )
        self.config, self.seq = config, seq or config.context
        super().__init__(
            table=accumulation_table(config, self.seq), gpus={name: int(memory) for name, memory in GPUS.items()},
            global_batch=global_batch, micro_batch=micro_batch, optimizer=optimizer, gpu=gpu,
        )  # fmt: skip

    @property
    def cuts(self) -> list[Cut]:
        """What the explorer shows now."""
        return accumulation_cuts(self.config, self.seq, self.global_batch, self.optimizer)

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; the peaks if empty.
        """
        cuts, memory = self.cuts, GPUS[self.gpu]
        told = "; ".join(f"{cut.pieces} × {cut.micro_batch}: {cut.peak.total:.1GiB}" for cut in cuts)
        peaks_by_micro_batch(
            {cut.micro_batch: cut.peak for cut in cuts},
            self.gpu,
            memory,
            caption=caption or "Smaller pieces cost only activations. What is left at the left end, they cannot touch.",
            alt=alt or f"Peak memory of a step of {self.global_batch} sequences, cut into pieces. {told}. "
            f"The {self.gpu} has {memory:.0GiB}.",
        ).show(widget=self)  # fmt: skip

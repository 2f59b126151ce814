"""Batch × accumulation × memory: the pieces into which a batch must be cut to fit a GPU, and the bytes that remain.

Move the micro-batch and see the activations shrink while everything else stays. All numbers come from
`predict.peak`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from course_kit.accounts import CATEGORIES
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_lib.model import hardware
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup, peak
from course_lib.predict.peak import PeakAccount
from course_lib.predict.setup import Optimizer
from course_pages.lesson05.pictures import peaks_by_micro_batch

GPT2 = GPTConfig(layers=12, width=768, heads=12, vocab_size=50_257, context=1024)
"""GPT-2 small, 124 million parameters."""

SIZES = tuple(2**k for k in range(10))
"""Global batches and micro-batches to choose from: 1 to 512."""

GPUS = {gpu.name: gpu.usable for gpu in hardware.ALL}
"""Bytes that a program sees; CUDA's own bytes are among them."""

OPTIMIZERS = {"adam": "Adam", "momentum": "SGD with momentum", "sgd": "SGD"}
"""Every `predict.Optimizer`, and its name on the page."""


def batch_splits(global_batch: int, optimizer: Optimizer = "adam") -> dict[int, PeakAccount]:
    """Bytes at a step's worst moment if a batch is cut into pieces of 1, 2, 4, … sequences: fp32, nothing recomputed.

    Raises:
        ValueError: the batch is not one of `SIZES`.
    """
    if global_batch not in SIZES:
        raise ValueError(f"global_batch={global_batch} given; it must be one of {SIZES}")
    setup = Setup(GPT2, batch_size=global_batch, optimizer=optimizer)
    return {micro: peak(setup.with_(micro_batch=micro)) for micro in SIZES if micro <= global_batch}


@cache
def accumulation_table() -> dict[str, Any]:
    """Numbers that the script draws.

    Returns:
        "peaks": optimizer → global batch → for each micro-batch the bytes of the five categories. "gpus": name → bytes.
        "colors": of the categories.
    """
    peaks = {
        optimizer: {
            str(batch): [list(map(int, each.values())) for each in batch_splits(batch, optimizer).values()]
            for batch in SIZES
        }
        for optimizer in get_args(Optimizer)
    }
    gpus = {name: int(memory) for name, memory in GPUS.items()}
    return {"peaks": peaks, "gpus": gpus, "colors": {category: PALETTE[category] for category in CATEGORIES}}


class AccumulationExplorer(Explorer):
    """A batch of GPT-2's sequences in pieces, against the memory of a GPU.

    Args:
        chosen: global_batch and micro_batch, from `SIZES`; optimizer, "sgd", "momentum" or "adam"; gpu, a name from
            `model.hardware`.
    """

    caption = "Smaller pieces cost only activations. What is left at the left end, they cannot touch."
    global_batch = Control("Sequences in a step", SIZES, 64)
    micro_batch = Control("Sequences in a piece", SIZES, 64, limit=("global_batch", lambda batch: batch))
    optimizer = Control("Optimizer", list(OPTIMIZERS), "adam", OPTIMIZERS.__getitem__, "choice")
    gpu = Control("GPU", list(GPUS), "T4", lambda name: f"{name} ({GPUS[name]:.1GiB})", "choice")
    _table = staticmethod(accumulation_table)

    @property
    def splits(self) -> dict[int, PeakAccount]:
        """Sequences in a piece → the peak, for all splits of the chosen batch."""
        return batch_splits(self.global_batch, self.optimizer)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return peaks_by_micro_batch(self.splits, self.gpu, GPUS[self.gpu], caption=caption, alt=alt)

    def _told(self) -> str:
        splits = self.splits.items()
        told = "; ".join(f"{self.global_batch // size} × {size}: {peak.total:.1GiB}" for size, peak in splits)
        return (
            f"Peak memory of a step of {self.global_batch} sequences, cut into pieces. {told}. A program on the "
            f"{self.gpu} sees {GPUS[self.gpu]:.2GiB}."
        )

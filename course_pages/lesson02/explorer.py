"""A training step's peak against the cards that it might run on.

Move a slider, and see which block grows, by how much, and which cards drop out. `held` asks `predict.peak`, which
lesson 02 measures. These controls have 7 million places, so the table has sums, the largest of them a peak: `moments`.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from typing import Any

from course_kit.accounts import CATEGORIES
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup, peak
from course_lib.predict.peak import PeakAccount
from course_pages.lesson02.moments import TERMS, passes, states, sums, that_may_be_largest, update
from course_pages.shared.memory import memory_against_gpus
from course_pages.shared.models_on_gpus import GPUS

VOCAB = 50_257
"""Entries of GPT-2's vocabulary."""

WIDTHS = (256, 512, 768, 1024, 1280, 1600, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 20480)
SEQS = tuple(2**i for i in range(7, 16))

WORDS = {
    "fp32": "fp32", "mixed": "mixed (fp32 copy)", "bf16": "all bf16", "sgd": "SGD", "momentum": "SGD, momentum",
    "adam": "Adam", "explicit": "written out", "fused": "fused", "none": "nothing", "full": "every block",
}  # fmt: skip


def shape(layers: int, width: int, seq: int, attention: str) -> GPTConfig:
    """A GPT of this depth and width, with GPT-2's vocabulary; heads are 64 wide, from a width of 2048 on 128."""
    heads = width // (64 if width < 2048 else 128)
    return GPTConfig(layers, width, heads, VOCAB, context=seq, attention=attention)  # type: ignore[arg-type]


def held(
    layers: int, width: int, batch: int, seq: int, precision: Any, optimizer: Any, attention: str, recompute: Any
) -> PeakAccount:
    """Bytes alive at the worst moment of a step."""
    config = shape(layers, width, seq, attention)
    return peak(Setup(config, batch_size=batch, precision=precision, optimizer=optimizer, recompute=recompute))


def steps(attention: str = "fused", one: bool = False, **kind: Any) -> list[Setup]:
    """Small steps of one kind, enough of them to tell the factors of all terms; of one sequence each, or of several."""
    chosen, some = random.Random(0), (2, 3, 5)
    sizes = [
        (chosen.choice(some), chosen.choice(WIDTHS[:8]), chosen.choice(SEQS[:3]), chosen.choice(some))
        for _ in range(32)
    ]
    return [
        Setup(shape(layers, width, seq, attention), batch_size=1 if one else batch, **kind)
        for layers, width, seq, batch in sizes
    ]


@cache
def memory_table() -> dict[str, Any]:
    """Factors of the terms that the script adds up; see `moments`.

    Returns:
        "terms": powers. "passes": "bits attention recompute 1-or-more" → the moments that may be the peak: the pass,
        and sums of gradients, activations, temporaries; "updates": "precision optimizer" → likewise. "states":
        "precision optimizer" → sums of parameters and optimizer. "gpus": [name, usable]. "colors": of the categories.
    """
    offers = {name: control.values for name, control in MemoryBarExplorer.controls().items()}
    tables: dict[str, dict[str, Any]] = {"passes": {}, "updates": {}, "states": {}}
    bits = {"fp32": "fp32", "bf16": "16 bits"}
    for precision, attention, recompute, one in product(bits, offers["attention"], offers["recompute"], (True, False)):
        place = f"{bits[precision]} {attention} {recompute} {1 if one else 'more'}"
        kind = steps(attention, one, precision=precision, recompute=recompute)
        tables["passes"][place] = that_may_be_largest(sums(passes, kind))
    for precision, optimizer in product(offers["precision"], offers["optimizer"]):
        kind = steps(precision=precision, optimizer=optimizer)
        tables["updates"][f"{precision} {optimizer}"] = that_may_be_largest(sums(update, kind))
        tables["states"][f"{precision} {optimizer}"] = sums(states, kind)["states"]
    gpus = [[name, int(gpu.usable)] for name, gpu in GPUS.items()]
    return {**tables, "terms": TERMS, "gpus": gpus, "colors": {category: PALETTE[category] for category in CATEGORIES}}


def _choice(label: str, values: tuple[str, ...], default: str) -> Control:
    return Control(label, values, default, WORDS.__getitem__, "choice")


class MemoryBarExplorer(Explorer):
    """A stacked bar, and named GPUs below it.

    Args:
        layers, width, batch, seq: the GPT and its batch.
        precision: "fp32"; "mixed": 16-bit weights with an fp32 copy; "bf16": everything in 16 bits.
        optimizer: "sgd", "momentum" or "adam".
        attention: "explicit" keeps the scores, "fused" does not.
        recompute: "none", or "full": every block keeps its input alone.
    """

    caption = "The bar must be shorter than the card. Which of its blocks would you shorten?"
    layers = Control("Layers", range(1, 129), 48)
    width = Control("Width", WIDTHS, 1600, "{:,}".format)
    batch = Control("Batch (sequences)", tuple(2**i for i in range(11)), 8, "{:,}".format)
    seq = Control("Sequence (tokens)", SEQS, 1024, "{:,}".format)
    precision = _choice("Precision", ("fp32", "mixed", "bf16"), "mixed")
    optimizer = _choice("Optimizer", ("sgd", "momentum", "adam"), "adam")
    attention = _choice("Attention", ("explicit", "fused"), "explicit")
    recompute = _choice("Recompute", ("none", "full"), "none")
    _table = staticmethod(memory_table)

    @property
    def account(self) -> PeakAccount:
        """Bytes at the peak of the training step that the controls describe."""
        return held(**self.chosen)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        gpus = {name: gpu.usable for name, gpu in GPUS.items()}
        return memory_against_gpus(self.account, gpus, caption=caption, alt=alt)

    def _told(self) -> str:
        account = self.account
        fits = [name for name, gpu in GPUS.items() if account.total <= gpu.usable]
        parts = ", ".join(f"{category} {nbytes:.1GiB}" for category, nbytes in account.items() if nbytes)
        return (
            f"A GPT of {self.layers} layers, {self.width} wide, with {self.batch} sequences of {self.seq} tokens: "
            f"{parts}; together {account.total:.1GiB} at the peak ({account.phase}). "
            f"It fits on: {', '.join(fits) or 'none of the cards'}."
        )

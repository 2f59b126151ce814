"""A training step's memory against the cards that it might run on.

Move a slider, and see which block grows, by how much, and which cards drop out. `held` counts it, from the formulas
that lesson 02 measures. These controls have 7 million places, so the table holds what the bytes are made of: a part
that is there once and one for each layer, a part for two sequences and one for each that comes on top.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

from course_kit.accounts import MemoryAccount
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_kit.units import Bytes
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup, activations, model_states, parameters
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
) -> MemoryAccount:
    """Bytes held at the turn of a step, when the forward pass ends, with gradients already in place.

    That is the model states and the activations. (Gradients grow while activations shrink, so the true peak lies a
    little lower or, with temporaries, a little higher; `predict.peak` follows it.)
    """
    states = model_states(Setup(shape(layers, width, seq, attention), precision=precision, optimizer=optimizer))
    return states + MemoryAccount(activations=kept(layers, width, batch, seq, precision, attention, recompute))


def kept(layers: int, width: int, batch: int, seq: int, precision: Any, attention: str, recompute: Any) -> Bytes:
    """Bytes of the activations alone."""
    config = shape(layers, width, seq, attention)
    return activations(Setup(config, batch_size=batch, precision=precision, recompute=recompute))


def states_parts(width: int, precision: str, optimizer: str) -> list[list[int]]:
    """The number of parameters, and bytes of parameters, gradients and optimizer state, as [once, a layer, a token].

    The last is for each token of a sequence: its row of the position embedding.
    """

    def count(layers: int, seq: int) -> list[int]:
        account = held(layers, width, 2, seq, precision, optimizer, "fused", "full")
        states = (account.parameters, account.gradients, account.optimizer)
        return [int(parameters(shape(layers, width, seq, "fused"))), *map(int, states)]

    # All are linear in layers and in tokens: three shapes tell the three parts.
    once, deeper, longer = count(1, 128), count(2, 128), count(1, 129)
    return [[a - (b - a) - 128 * (c - a), b - a, c - a] for a, b, c in zip(once, deeper, longer, strict=True)]


def activation_parts(width: int, seq: int, precision: str, attention: str, recompute: str) -> list[list[int]]:
    """Bytes of activations as [once, a layer]: for one sequence, for two, and for each one more.

    (A single sequence is a case of its own: attention then keeps q, k and v in one piece.)
    """
    shallow, deep = (
        [int(kept(layers, width, batch, seq, precision, attention, recompute)) for batch in (1, 2, 3)]
        for layers in (1, 2)
    )
    one, two, three = ((2 * a - b, b - a) for a, b in zip(shallow, deep, strict=True))
    return [list(one), list(two), [three[0] - two[0], three[1] - two[1]]]


@cache
def memory_table() -> dict[str, Any]:
    """Parts that the bytes of all places are made of.

    Returns:
        "states": "precision optimizer" → for each width as `states_parts`. "kinds": "precision attention recompute" →
        which of "activations"; those are, for each width and sequence, as `activation_parts`. "gpus": [name, usable].
        "colors": of the categories.
    """
    offers = {name: control.values for name, control in MemoryBarExplorer.controls().items()}
    states = {
        f"{precision} {optimizer}": [states_parts(width, precision, optimizer) for width in WIDTHS]
        for precision, optimizer in product(offers["precision"], offers["optimizer"])
    }
    kinds, parts = {}, []
    for precision, attention, recompute in product(offers["precision"], offers["attention"], offers["recompute"]):
        # Both 16-bit precisions keep the same, and so do both kinds of attention of blocks that run again.
        same = ("mixed" if precision == "bf16" else precision, "fused" if recompute == "full" else attention, recompute)
        if " ".join(same) not in kinds:
            kinds[" ".join(same)] = len(parts)
            parts.append([[activation_parts(width, seq, *same) for seq in SEQS] for width in WIDTHS])
        kinds[f"{precision} {attention} {recompute}"] = kinds[" ".join(same)]
    gpus = [[name, int(gpu.usable)] for name, gpu in GPUS.items()]
    colors = {category: PALETTE[category] for category in MemoryAccount()}
    return {"states": states, "kinds": kinds, "activations": parts, "gpus": gpus, "colors": colors}


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
    def account(self) -> MemoryAccount:
        """Bytes of the training step that the controls describe."""
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
            f"{parts}; together {account.total:.1GiB}. Room for that, before the way back asks for more: "
            f"{', '.join(fits) or 'none of the cards'}."
        )

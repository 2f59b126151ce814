"""A training step's memory against the cards that it might run on.

Move a slider, and see which block grows, by how much, and which cards drop out. The arithmetic runs in the browser
(`memory_bar.js`), so the explorer answers at once and stays alive in a page without Python; `held` computes the same
in Python, from the formulas that lesson 02 measures.

Lesson 02 opens this module.
"""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from course_lib.accounts import MemoryAccount
from course_lib.explore import browser
from course_lib.figures.memory import memory_against_gpus
from course_lib.figures.style import PALETTE
from course_lib.model import hardware
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup, activations, model_states

VOCAB = 50_257
"""Entries of GPT-2's vocabulary."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "layers": tuple(range(1, 129)),
    "width": (256, 512, 768, 1024, 1280, 1600, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 20480),
    "batch": tuple(2**i for i in range(11)),
    "seq": tuple(2**i for i in range(7, 16)),
    "precision": ("fp32", "mixed", "bf16"),
    "optimizer": ("sgd", "momentum", "adam"),
    "attention": ("explicit", "fused"),
    "recompute": ("none", "full"),
}
"""What each control offers."""

GPUS = (
    hardware.T4, hardware.RTX_4090, hardware.V100_32GB, hardware.A100_40GB, hardware.A100_80GB, hardware.H200_141GB,
)  # fmt: skip


def shape(layers: int, width: int, seq: int, attention: str) -> GPTConfig:
    """A GPT of this depth and width, with GPT-2's vocabulary; heads are 64 wide, from a width of 2048 on 128."""
    heads = width // (64 if width < 2048 else 128)
    return GPTConfig(layers, width, heads, VOCAB, context=seq, attention=attention)  # type: ignore[arg-type]


def held(
    layers: int, width: int, batch: int, seq: int, precision: Any, optimizer: Any, attention: str, recompute: Any
) -> MemoryAccount:
    """What is held at the turn of a step, when the forward pass ends, with gradients already in place.

    That is the model states and the activations. (Gradients grow while activations shrink, so the true peak lies a
    little lower or, with temporaries, a little higher; `predict.peak` follows it.)
    """
    config = shape(layers, width, seq, attention)
    setup = Setup(config, batch, seq, precision=precision, optimizer=optimizer, recompute=recompute)
    return model_states(setup) + MemoryAccount(activations=activations(setup))


class MemoryBarExplorer(anywidget.AnyWidget):
    """A stacked bar, and named GPUs below it.

    Set `explorer.layers = 48` and the drawing follows; move the slider and `explorer.layers` follows.

    Args:
        layers, width, batch, seq: the GPT and its batch.
        precision: "fp32"; "mixed": 16-bit weights with an fp32 copy; "bf16": everything in 16 bits.
        optimizer: "sgd", "momentum" or "adam".
        attention: "explicit" keeps the scores, "fused" does not.
        recompute: "none", or "full": every block keeps its input alone.

    Raises:
        ValueError: a value that its control does not offer; or, as `traitlets.TraitError`, when it is set later.
    """

    _esm = browser.script("memory_bar")
    _css = browser.style("memory_bar")
    layers = traitlets.Enum(CHOICES["layers"]).tag(sync=True)
    width = traitlets.Enum(CHOICES["width"]).tag(sync=True)
    batch = traitlets.Enum(CHOICES["batch"]).tag(sync=True)
    seq = traitlets.Enum(CHOICES["seq"]).tag(sync=True)
    precision = traitlets.Enum(CHOICES["precision"]).tag(sync=True)
    optimizer = traitlets.Enum(CHOICES["optimizer"]).tag(sync=True)
    attention = traitlets.Enum(CHOICES["attention"]).tag(sync=True)
    recompute = traitlets.Enum(CHOICES["recompute"]).tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    gpus = traitlets.List().tag(sync=True)
    colors = traitlets.Dict().tag(sync=True)

    def __init__(
        self, layers: int = 48, width: int = 1600, batch: int = 8, seq: int = 1024, precision: str = "mixed",
        optimizer: str = "adam", attention: str = "explicit", recompute: str = "none",
    ) -> None:  # fmt: skip
        given = {
            "layers": layers, "width": width, "batch": batch, "seq": seq, "precision": precision,
            "optimizer": optimizer, "attention": attention, "recompute": recompute,
        }  # fmt: skip
        for name, value in given.items():
            if value not in CHOICES[name]:
                offered = CHOICES[name] if name != "layers" else ("1 to 128",)
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(str, offered))}")
        super().__init__(
            **given,
            choices={name: list(values) for name, values in CHOICES.items()},
            gpus=[[gpu.name, int(gpu.memory)] for gpu in GPUS],
            colors={category: PALETTE[category] for category in MemoryAccount()},
        )

    @property
    def account(self) -> MemoryAccount:
        """What the explorer shows now."""
        return held(
            self.layers, self.width, self.batch, self.seq, self.precision, self.optimizer, self.attention,
            self.recompute,
        )  # fmt: skip

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of it for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; the account if empty.
        """
        account, gpus = self.account, {gpu.name: gpu.memory for gpu in GPUS}
        fits = [name for name, memory in gpus.items() if account.total <= memory]
        parts = ", ".join(f"{category} {nbytes:.1GiB}" for category, nbytes in account.items() if nbytes)
        memory_against_gpus(
            account,
            gpus,
            caption=caption or "The bar must be shorter than the card. Which of its blocks would you shorten?",
            alt=alt
            or f"A GPT of {self.layers} layers, {self.width} wide, with {self.batch} sequences of {self.seq} tokens: "
            f"{parts}; together {account.total:.1GiB}. It fits on {', '.join(fits) or 'none of the cards'}.",
        ).show(widget=self)

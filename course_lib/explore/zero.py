"""ZeRO against real cards: what each stage leaves on a rank, what it sends, and from how many ranks on it fits.

Choose a model, a card and a number of ranks; all four stages are shown at once, since the question is which of them is
enough. Bytes and seconds are `predict`'s. The table holds them for every place of the controls, activations apart.

Lesson 10 opens this module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from course_lib.accounts import CATEGORIES, MemoryAccount
from course_lib.explore.base import Control, Explorer
from course_lib.figures.memory import memory_bar
from course_lib.figures.style import PALETTE, Picture
from course_lib.model import hardware, zoo
from course_lib.predict import Link, Setup, block_input, data_traffic, fewest_ranks, model_states, parameters
from course_lib.units import Bytes, Seconds

MODELS = {row.name: row for row in (
    zoo.GPT2_XL, zoo.GPT3_6_7B, zoo.LLAMA3_8B, zoo.NEOX_20B, zoo.LLAMA3_70B, zoo.GPT3_175B, zoo.LLAMA3_405B,
    zoo.MT_NLG_530B,
)}  # fmt: skip
GPUS = {gpu.name: gpu for gpu in (
    hardware.RTX_4090, hardware.V100_32GB, hardware.A100_40GB, hardware.A100_80GB, hardware.H100_80GB,
    hardware.H200_141GB,
)}  # fmt: skip
RANKS, SEQUENCES = tuple(2**i for i in range(13)), (0, 1, 2, 4, 8, 16)
STAGES = ("0: nothing cut", "1: state cut", "2: and gradients", "3: and weights")
MOST_RANKS = 2**16
"""Whoever does not fit on so many does not fit at all."""


def setup_of(model: str, ranks: int, zero: Any) -> Setup:
    """Mixed precision with AdamW, 16 bytes a parameter; the number of parameters stands for the model."""
    return Setup(int(parameters(MODELS[model])), ranks, precision="mixed", data=ranks, zero=zero)


def kept(model: str, sequences: int) -> Bytes:
    """Bytes of what a rank keeps of its sequences for the backward pass when every block is recomputed: its input."""
    if not sequences:
        return Bytes(0)
    setup = Setup(MODELS[model], sequences, precision="mixed", recompute="full")
    return Bytes(setup.shape.layers * block_input(setup))


def held(model: str, ranks: int, zero: int, sequences: int) -> MemoryAccount:
    """What a rank holds of the model and for the backward pass. What passes through (buckets, a gathered unit) and the
    block that is being recomputed come on top."""
    return model_states(setup_of(model, ranks, zero)) + MemoryAccount(activations=kept(model, sequences))


def sent(model: str, ranks: int, zero: int, gpu: str) -> tuple[Bytes, Seconds]:
    """What a rank sends in a step, and how long that takes if all ranks are joined as the GPUs of one machine are."""
    each = data_traffic(setup_of(model, ranks, zero)).values()
    link = Link(Seconds(0), 1 / GPUS[gpu].link_bytes_per_s)
    return sum((one.bytes for one in each), Bytes(0)), Seconds(sum(float(one.seconds(link)) for one in each))


def needed(model: str, zero: int, sequences: int, gpu: str) -> int:
    """The fewest ranks on which it fits; 0 if `MOST_RANKS` are too few."""
    left = GPUS[gpu].memory - kept(model, sequences)
    if left <= 0 or model_states(setup_of(model, MOST_RANKS, zero)).total > left:
        return 0
    return int(fewest_ranks(setup_of(model, 1, zero), left).data)


@cache
def zero_table() -> dict[str, Any]:
    """What is drawn at all places; a list of four has a number for each stage.

    Returns:
        "states": model → for each number of ranks, of each stage [weights, gradients, state] in bytes. "activations":
        model → bytes for each number of sequences. "sent": model → for each number of ranks, of each stage, in words.
        "seconds": GPU → the same. "fewest": GPU → model → for each number of sequences, of each stage, 0 for never.
        "gpus": name → bytes. "stages", "colors": of the rows and the categories.
    """
    stages = range(len(STAGES))

    def places(of: Callable[[str, int, int], Any]) -> dict[str, Any]:
        return {model: [[of(model, ranks, zero) for zero in stages] for ranks in RANKS] for model in MODELS}

    return {
        "states": places(lambda model, ranks, zero: [int(n) for n in list(held(model, ranks, zero, 0).values())[:3]]),
        "activations": {model: [int(kept(model, sequences)) for sequences in SEQUENCES] for model in MODELS},
        "sent": places(lambda model, ranks, zero: f"{sent(model, ranks, zero, next(iter(GPUS)))[0]:.1GB}"),
        "seconds": {
            gpu: places(lambda model, ranks, zero, gpu=gpu: f"{sent(model, ranks, zero, gpu)[1]:.1}") for gpu in GPUS
        },
        "fewest": {
            gpu: {
                model: [[needed(model, zero, sequences, gpu) for zero in stages] for sequences in SEQUENCES]
                for model in MODELS
            }
            for gpu in GPUS
        },
        "gpus": {name: int(gpu.memory) for name, gpu in GPUS.items()},
        "stages": STAGES,
        "colors": {category: PALETTE[category] for category in CATEGORIES[:4]},
    }


class ZeroExplorer(Explorer):
    """Four stages side by side on one card.

    Set `explorer.ranks = 64` and the drawing follows; move the slider and `explorer.ranks` follows.

    Args:
        model: a name in `MODELS`.
        gpu: a name in `GPUS`.
        ranks: of data parallelism, a power of two up to 4,096.
        sequences: on each rank, as long as the model's context, every block recomputed; 0 leaves activations out.

    Raises:
        ValueError: no control offers that; or, as `traitlets.TraitError`, when it is set later.
    """

    caption = "Which stage is the first that fits? And what does it send for that?"
    model = Control("Model", list(MODELS), "GPT-3 6.7B", kind="choice")
    gpu = Control("GPU", list(GPUS), "A100 40GB", kind="choice")
    ranks = Control("Ranks", RANKS, 8, "{:,}".format)
    sequences = Control("Sequences each", SEQUENCES, 0, lambda n: str(n) if n else "none")

    @property
    def accounts(self) -> dict[str, MemoryAccount]:
        """What is shown now: stage → what a rank holds."""
        return {name: held(self.model, self.ranks, zero, self.sequences) for zero, name in enumerate(STAGES)}

    def _table(self) -> dict[str, Any]:
        return zero_table()

    def _picture(self, *, caption: str, alt: str) -> Picture:
        limit = {self.gpu: GPUS[self.gpu].memory}
        picture = memory_bar(self.accounts, limit=limit, unit="GiB", caption=caption)
        picture.alt = alt
        return picture

    def _told(self) -> str:
        rows = []
        for zero, (name, account) in enumerate(self.accounts.items()):
            n_bytes, seconds = sent(self.model, self.ranks, zero, self.gpu)
            fewest = needed(self.model, zero, self.sequences, self.gpu)
            fits = "fits" if account.total <= GPUS[self.gpu].memory else "does not fit"
            rows.append(
                f"Stage {name}: {account.total:.1GiB}, {fits}, {f'{fewest:,} ranks are enough' if fewest else 'never'}"
                f"; sends {n_bytes:.1GB} in {seconds:.1}."
            )
        return f"{self.model} on {self.ranks:,} ranks, {self.gpu}. {' '.join(rows)}"

"""ZeRO against real cards: bytes that each stage leaves on a rank and sends, and the fewest ranks that are enough.

Choose a model, a card and a number of ranks; all four stages are shown at once, since the question is which of them is
enough. Bytes and seconds are `predict`'s. The table holds them for every place of the controls; activations and
passing buffers do not depend on the ranks, and stand apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_kit.units import Bytes, Seconds
from course_lib.predict import Link, data_traffic, fewest_ranks, model_states
from course_pages.shared.memory import memory_bar
from course_pages.shared.models_on_gpus import GPUS, MODELS, held, kept, passing, setup_of

RANKS, SEQUENCES = tuple(2**i for i in range(13)), (0, 1, 2, 4, 8, 16)
STAGES = ("0: nothing cut", "1: state cut", "2: and gradients", "3: and weights")
MOST_RANKS = 2**16
"""A model that does not fit on so many ranks is told to fit on none."""


def sent(model: str, ranks: int, zero: int, gpu: str) -> tuple[Bytes, Seconds]:
    """Bytes that a rank sends in a step, and their seconds if all ranks are joined like the GPUs of one machine."""
    each = data_traffic(setup_of(model, ranks, zero)).values()
    link = Link(Seconds(0), 1 / GPUS[gpu].link_bytes_per_s)
    return sum((one.bytes for one in each), Bytes(0)), Seconds(sum(float(one.seconds(link)) for one in each))


def at_most(model: str, ranks: int, zero: int, sequences: int) -> MemoryAccount:
    """Bytes of a rank at its fullest moment, passing buffers included."""
    return held(model, ranks, zero, sequences) + passing(model, zero, sequences)


def needed(model: str, zero: int, sequences: int, gpu: str) -> int:
    """The fewest ranks on which the model fits; 0 if `MOST_RANKS` are too few."""
    left = GPUS[gpu].usable - kept(model, sequences) - passing(model, zero, sequences).total
    if left <= 0 or model_states(setup_of(model, MOST_RANKS, zero)).total > left:
        return 0
    return int(fewest_ranks(setup_of(model, 1, zero), left).data)


@cache
def zero_table() -> dict[str, Any]:
    """Bytes, seconds and numbers of ranks at all places; a list of four has a number for each stage.

    Returns:
        "states": model → for each number of ranks, of each stage [weights, gradients, state] in bytes. "activations",
        "passing": model → bytes for each number of sequences. "gathered": model → bytes that pass in stage 3, too.
        "sent": model → for each number of ranks, of each stage, in words. "seconds": GPU → the same. "fewest": GPU →
        model → for each number of sequences, of each stage, 0 for never. "gpus": name → usable bytes.
        "stages", "colors": of the rows and the categories.
    """
    stages = range(len(STAGES))

    def places(of: Callable[[str, int, int], Any], along: Sequence[int] = RANKS) -> dict[str, Any]:
        return {model: [[of(model, each, zero) for zero in stages] for each in along] for model in MODELS}

    return {
        "states": places(lambda model, ranks, zero: [int(n) for n in list(held(model, ranks, zero, 0).values())[:3]]),
        "activations": {model: [int(kept(model, sequences)) for sequences in SEQUENCES] for model in MODELS},
        "passing": {model: [int(passing(model, 0, n).total) for n in SEQUENCES] for model in MODELS},
        "gathered": {model: int(passing(model, 3, 0).total) for model in MODELS},
        "sent": places(lambda model, ranks, zero: f"{sent(model, ranks, zero, next(iter(GPUS)))[0]:.1GB}"),
        "seconds": {
            gpu: places(lambda model, ranks, zero, gpu=gpu: f"{sent(model, ranks, zero, gpu)[1]:.1}") for gpu in GPUS
        },
        "fewest": {gpu: places(lambda model, n, zero, gpu=gpu: needed(model, zero, n, gpu), SEQUENCES) for gpu in GPUS},
        "gpus": {name: int(gpu.usable) for name, gpu in GPUS.items()},
        "stages": STAGES,
        "colors": [PALETTE[category] for category in CATEGORIES],
    }


class ZeroExplorer(Explorer):
    """Four stages side by side on one card.

    Args:
        model: a name in `MODELS`.
        gpu: a name in `GPUS`.
        ranks: number of data-parallel ranks, a power of two up to 4,096.
        sequences: on each rank, as long as the model's context, every block recomputed; 0 leaves activations out.
    """

    caption = "Which stage is the first that fits? And what does it send for that?"
    model = Control("Model", list(MODELS), "GPT-3 6.7B", kind="choice")
    gpu = Control("GPU", list(GPUS), "A100 40GB", kind="choice")
    ranks = Control("Ranks", RANKS, 8, "{:,}".format)
    sequences = Control("Sequences each", SEQUENCES, 0, lambda n: str(n) if n else "none")
    _table = staticmethod(zero_table)

    @property
    def accounts(self) -> dict[str, MemoryAccount]:
        """Stage → bytes of a rank at its fullest moment."""
        return {name: at_most(self.model, self.ranks, zero, self.sequences) for zero, name in enumerate(STAGES)}

    def _picture(self, *, caption: str, alt: str) -> Picture:
        limit = {self.gpu: GPUS[self.gpu].usable}
        return memory_bar(self.accounts, limit=limit, unit="GiB", caption=caption, alt=alt)

    def _told(self) -> str:
        rows = []
        for zero, (name, account) in enumerate(self.accounts.items()):
            n_bytes, seconds = sent(self.model, self.ranks, zero, self.gpu)
            fewest = needed(self.model, zero, self.sequences, self.gpu)
            fits = "fits" if account.total <= GPUS[self.gpu].usable else "does not fit"
            rows.append(
                f"Stage {name}: {account.total:.1GiB}, {fits}, {f'{fewest:,} ranks are enough' if fewest else 'never'}"
                f"; sends {n_bytes:.1GB} in {seconds:.1}."
            )
        where = f"{self.model} on {self.ranks:,} ranks, {self.gpu}{'' if self.sequences else ', states alone'}"
        return f"{where}. {' '.join(rows)}"

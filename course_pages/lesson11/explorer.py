"""Three tiers of memory: the bytes in each tier, beside its size, and the parts of a step's seconds.

Choose a model and the machine of one GPU, then move the model's states up and down between GPU memory, main memory and
disk. Beside the seconds in which the card computes stand those of the link, of the processor that runs Adam, and of the
disk: the bytes that cross, over the bandwidth of each. The table holds bytes, FLOPs and speeds; the script
adds and divides as `TiersExplorer.seconds` does.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_kit.units import Bytes, FlopsPerSecond, Ratio, Seconds
from course_lib.model import hardware
from course_lib.predict.offload import UPDATE_BYTES
from course_pages.lesson11.pictures import fill_of_tiers
from course_pages.shared.models_on_gpus import GPUS, MODELS, held, kept, passing

PLACES = ("GPU", "main memory", "disk")
STATES = ("weights", "gradients", "optimizer", "checkpoints")
SEQUENCES = tuple(2**i for i in range(8))
REACHED = 0.56
"""Share of its peak in 16 bits that a GPU reaches: a V100 reaches 70 of 125 TFLOP/s (Rajbhandari et al. 2021, §4)."""


class Memory(NamedTuple):
    """A tier: its bytes, bytes a second at best, and its parts in words."""

    size: Bytes
    bytes_per_s: float
    made_of: str


MEMORIES = {  # a channel is 8 bytes wide
    "64 GiB": Memory(Bytes(64 * 2**30), 2 * 3200e6 * 8, "2 × DDR4-3200"),
    "256 GiB": Memory(Bytes(256 * 2**30), 4 * 3200e6 * 8, "4 × DDR4-3200"),
    "512 GiB": Memory(Bytes(512 * 2**30), 8 * 3200e6 * 8, "8 × DDR4-3200"),
    "2 TiB": Memory(Bytes(2 * 2**40), 12 * 4800e6 * 8, "12 × DDR5-4800"),
}
LINKS = {"PCIe 3.0": hardware.T4.link_bytes_per_s, "PCIe 4.0": hardware.RTX_4090.link_bytes_per_s}
LINKS["PCIe 5.0"] = 2 * LINKS["PCIe 4.0"]
"""Sixteen lanes, in one direction."""
DISKS = {
    f"{number} on {version}": Memory(Bytes(n * 4 * 10**12), n * bytes_per_s / 4, f"{n} × 4 TB, {version}")
    for version, bytes_per_s in LINKS.items()
    for n, number in ((1, "one"), (4, "four"))
}
"""NVMe drives, each as fast as its four lanes."""


def speed_of(gpu: str) -> FlopsPerSecond:
    """FLOPs a second that a GPU reaches in 16 bits."""
    return FlopsPerSecond(REACHED * GPUS[gpu].peak("fp16"))


def flops_of(model: str, sequences: int) -> float:
    """FLOPs of a step in which every block is recomputed, with sequences as long as the model's context."""
    return 8.0 * held(model, 1, 0, 0).parameters / 2 * sequences * MODELS[model].config.context


def passed(model: str, sequences: int, away: bool) -> Bytes:
    """Bytes that the GPU holds for a moment: the work on a block or the logits, and units of weights that are away."""
    return passing(model, 3 if away else 0, sequences).total


@cache
def tiers_table() -> dict[str, Any]:
    """Bytes, FLOPs and speeds, for the page to add up and divide.

    Returns:
        "states": model → bytes of weights, gradients and optimizer state. "checkpoints": model → bytes for each number
        of sequences. "passing": model → the same, of passing bytes: [weights on the GPU, weights away].
        "flops": model → FLOPs of a step for each number of sequences. "gpus": name → [usable bytes, bytes a second,
        FLOPs a second]. "memories", "disks": name → [bytes, bytes a second]. "links": name → bytes a second.
        "update": bytes a parameter that the processor's update moves. "places"; "colors", the last of passing bytes.
    """
    return {
        "states": {model: [int(n) for n in list(held(model, 1, 0, 0).values())[:3]] for model in MODELS},
        "checkpoints": {model: [int(kept(model, sequences)) for sequences in SEQUENCES] for model in MODELS},
        "passing": {
            model: [[int(passed(model, n, away)) for away in (False, True)] for n in SEQUENCES] for model in MODELS
        },
        "flops": {model: [flops_of(model, sequences) for sequences in SEQUENCES] for model in MODELS},
        "gpus": {name: [int(gpu.usable), gpu.memory_bytes_per_s, float(speed_of(name))] for name, gpu in GPUS.items()},
        "memories": {name: [int(each.size), each.bytes_per_s] for name, each in MEMORIES.items()},
        "links": LINKS,
        "disks": {name: [int(each.size), each.bytes_per_s] for name, each in DISKS.items()},
        "places": PLACES,
        "update": UPDATE_BYTES,
        "colors": [PALETTE[category] for category in CATEGORIES],
    }


def _place(label: str, default: str = PLACES[0]) -> Control:
    return Control(label, PLACES, default, kind="choice")


class TiersExplorer(Explorer):
    """Bars for the three tiers, and the seconds in which the card computes beside those in which it waits.

        TiersExplorer().show()                                            # the optimizer state is in main memory
        TiersExplorer(model="GPT-3 175B", gpu="V100 32GB", weights="disk", gradients="disk", optimizer="disk").show()

    `explorer.tiers` has the bytes of each place, and `explorer.seconds` the parts of a step.

    Args:
        model: a name in `MODELS`; in mixed precision with AdamW, 16 bytes a parameter.
        gpu: a name in `GPUS`.
        sequences: those of this GPU in a step, as long as the model's context, every block recomputed.
        memory: a name in `MEMORIES`: size and speed of main memory.
        link: a name in `LINKS`, between GPU and main memory.
        disk: a name in `DISKS`.
        weights, gradients, optimizer, checkpoints: one of `PLACES`.
        processor: whether the processor runs Adam where the optimizer state is not on the GPU; else the state travels
            to the GPU.
    """

    caption = "What left the GPU costs time on other clocks: compare the bars of link and processor with the card's."
    model = Control("Model", list(MODELS), "GPT-3 6.7B", kind="choice")
    gpu = Control("GPU", list(GPUS), "A100 40GB", kind="choice")
    sequences = Control("Sequences", SEQUENCES, 4)
    memory = Control(
        "Main memory", list(MEMORIES), "512 GiB", lambda name: f"{name}, {MEMORIES[name].made_of}", "choice"
    )
    link = Control("GPU ↔ main memory", list(LINKS), "PCIe 4.0", "{} ×16".format, "choice")
    disk = Control("Disk", list(DISKS), "one on PCIe 4.0", lambda n: f"{DISKS[n].made_of} ×4", "choice")
    weights = _place("Weights")
    gradients = _place("Gradients")
    optimizer = _place("Optimizer state", "main memory")
    checkpoints = _place("Checkpoints")
    processor = Control("The processor runs Adam", (False, True), True, kind="switch")
    _table = staticmethod(tiers_table)

    @property
    def capacities(self) -> dict[str, Bytes]:
        """Place → the bytes that a program may use of it."""
        sizes = GPUS[self.gpu].usable, MEMORIES[self.memory].size, DISKS[self.disk].size
        return dict(zip(PLACES, sizes, strict=True))

    @property
    def tiers(self) -> dict[str, MemoryAccount]:
        """Place → bytes that lie there; activations are checkpoints, and temporaries the GPU's passing bytes."""
        states = held(self.model, 1, 0, 0) + MemoryAccount(
            activations=kept(self.model, self.sequences),
            temporaries=passed(self.model, self.sequences, self.weights != PLACES[0]),
        )
        places = {category: getattr(self, state) for category, state in zip(CATEGORIES, STATES)}
        places["temporaries"] = PLACES[0]
        return {
            place: MemoryAccount(**{category: states[category] for category, its in places.items() if its == place})
            for place in PLACES
        }

    @property
    def away(self) -> bool:
        """Whether the update has left the card: the processor runs Adam beside states that lie elsewhere."""
        return self.processor and self.optimizer != PLACES[0]

    @property
    def journeys(self) -> dict[str, tuple[Bytes, Bytes]]:
        """State → bytes of a step over the link and over the disk: a flow crosses if one of its ends is away.

        Weights are read for the forward pass, for recompute and for the backward pass, and written by the update;
        gradients are written by the backward pass and read by the update, which reads and writes the optimizer state.
        """
        states = held(self.model, 1, 0, 0)
        size, kept_bytes = states.parameters, kept(self.model, self.sequences)
        out = {state: getattr(self, state) != PLACES[0] for state in STATES}
        journeys = {
            "weights": (size * (3 * out["weights"] + (out["weights"] != self.away)), 4 * size),
            "gradients": (size * (out["gradients"] + (out["gradients"] != self.away)), 2 * size),
            "optimizer": (states.optimizer * 2 * (out["optimizer"] and not self.away), 2 * states.optimizer),
            "checkpoints": (kept_bytes * 2 * out["checkpoints"], 2 * kept_bytes),
        }
        return {each: (link, disk * (getattr(self, each) == PLACES[2])) for each, (link, disk) in journeys.items()}

    @property
    def seconds(self) -> dict[str, Seconds]:
        """Resource → seconds of a step, if nothing overlaps."""
        link, disk = (sum(journey[road] for journey in self.journeys.values()) for road in (0, 1))
        update = UPDATE_BYTES / 2 * held(self.model, 1, 0, 0).parameters if self.away else 0
        return {
            "card": Seconds(flops_of(self.model, self.sequences) / speed_of(self.gpu)),
            "link": Seconds(link / LINKS[self.link]),
            "processor": Seconds(update / MEMORIES[self.memory].bytes_per_s),
            "disk": Seconds(disk / DISKS[self.disk].bytes_per_s),
        }

    @property
    def efficiency(self) -> Ratio:
        """The share of the step in which the card computes."""
        return Ratio(self.seconds["card"] / sum(self.seconds.values()))

    def _picture(self, *, caption: str, alt: str) -> Picture:
        return fill_of_tiers(self.tiers, self.capacities, self.seconds, caption=caption, alt=alt)

    def _told(self) -> str:
        tiers = " ".join(
            f"{place} {account.total:.1GiB} of {self.capacities[place]:.1GiB}"
            f"{'' if account.total <= self.capacities[place] else ', too much'};"
            for place, account in self.tiers.items()
        )
        times = ", ".join(f"{road} {float(seconds):.2f} s" for road, seconds in self.seconds.items())
        return (
            f"{self.model} beside one {self.gpu}, {self.sequences} sequences. In {tiers.rstrip(';')}. A step: {times}; "
            f"the card computes {float(self.efficiency):.0%} of the time."
        )

"""Three tiers of memory: what lies where, whether it fits, and how much of its time the GPU computes.

Choose a model and the machine of one GPU, then move the model's states up and down between GPU memory, main memory and
disk. Bytes, arithmetic intensity and efficiency are `predict`'s. The table holds the bytes and the intensities; the
script adds the bytes of a tier and puts intensity, bandwidth and speed into `predict.link_efficiency`'s formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import PALETTE, Picture
from course_kit.units import Bytes, FlopsPerSecond, Ratio
from course_lib.model import hardware
from course_lib.predict.offload import OffloadedState, bandwidth_for, flops_a_byte, link_efficiency
from course_pages.lesson11.pictures import fill_of_tiers
from course_pages.shared.models_on_gpus import GPUS, MODELS, held, kept

PLACES = ("GPU", "main memory", "disk")
STATES: tuple[OffloadedState, ...] = get_args(OffloadedState)
SEQUENCES = tuple(2**i for i in range(8))
GOAL = 0.9
"""Efficiency whose bandwidth the page tells."""
REACHED = 0.56
"""Share of its peak in 16 bits that a GPU reaches: a V100 reaches 70 of 125 TFLOP/s (Rajbhandari et al. 2021, §4)."""


@dataclass(frozen=True)
class Memory:
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


@dataclass(frozen=True)
class Travel:
    """Cost of one state in its place.

    Attributes:
        place: one of `PLACES`.
        size: its bytes.
        intensity: FLOPs of a step for each byte that travels.
        bytes_per_s: over the slowest part of its way; its tier's own where nothing travels.
        needed: bytes a second for an efficiency of `GOAL`.
        efficiency: the share of the time in which the GPU computes, if this state alone travels and nothing is hidden
            behind computation; None where nothing travels.
    """

    place: str
    size: Bytes
    intensity: float
    bytes_per_s: float
    needed: float
    efficiency: Ratio | None


def speed_of(gpu: str) -> FlopsPerSecond:
    """FLOPs a second that a GPU reaches in 16 bits."""
    return FlopsPerSecond(REACHED * GPUS[gpu].peak("fp16"))


def intensity_of(state: OffloadedState, model: str, sequences: int) -> float:
    """FLOPs a byte, with sequences as long as the model's context, and a checkpoint at every block."""
    config = MODELS[model].config
    return flops_a_byte(state, sequences, config.context, config.width)


@cache
def tiers_table() -> dict[str, Any]:
    """Bytes, intensities and speeds, for the page to add up and divide.

    Returns:
        "states": model → bytes of weights, gradients and optimizer state. "checkpoints": model → bytes for each number
        of sequences. "intensity": model → for each number of sequences, FLOPs a byte of each state. "gpus": name →
        [bytes, bytes a second, FLOPs a second]. "memories", "disks": name → [bytes, bytes a second]. "links": name →
        bytes a second. "places"; "goal"; "colors" of the states.
    """
    return {
        "states": {model: [int(n) for n in list(held(model, 1, 0, 0).values())[:3]] for model in MODELS},
        "checkpoints": {model: [int(kept(model, sequences)) for sequences in SEQUENCES] for model in MODELS},
        "intensity": {
            model: [[intensity_of(state, model, sequences) for state in STATES] for sequences in SEQUENCES]
            for model in MODELS
        },
        "gpus": {name: [int(gpu.memory), gpu.memory_bytes_per_s, float(speed_of(name))] for name, gpu in GPUS.items()},
        "memories": {name: [int(each.size), each.bytes_per_s] for name, each in MEMORIES.items()},
        "links": LINKS,
        "disks": {name: [int(each.size), each.bytes_per_s] for name, each in DISKS.items()},
        "places": PLACES,
        "goal": GOAL,
        "colors": [PALETTE[category] for category in CATEGORIES[:4]],
    }


def _place(label: str, default: str = PLACES[0]) -> Control:
    return Control(label, PLACES, default, kind="choice")


class TiersExplorer(Explorer):
    """Bars for the three tiers, and for each state how long the GPU waits.

        TiersExplorer().show()                                            # the optimizer state is in main memory
        TiersExplorer(model="GPT-3 175B", gpu="V100 32GB", weights="disk", gradients="disk", optimizer="disk").show()

    `explorer.tiers` says what lies where, and `explorer.travels` what that costs.

    Args:
        model: a name in `MODELS`; in mixed precision with AdamW, 16 bytes a parameter.
        gpu: a name in `GPUS`.
        sequences: of this GPU in a step, as long as the model's context, every block recomputed.
        memory: a name in `MEMORIES`: size and speed of main memory.
        link: a name in `LINKS`, between GPU and main memory.
        disk: a name in `DISKS`.
        weights, gradients, optimizer, checkpoints: one of `PLACES`.
        processor: whether the processor runs Adam where the optimizer state is not on the GPU; else the state travels
            to the GPU.
    """

    caption = "The optimizer state has left the GPU. What would you move next, and how long does the GPU wait for it?"
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
        """Place → its size in bytes."""
        sizes = GPUS[self.gpu].memory, MEMORIES[self.memory].size, DISKS[self.disk].size
        return dict(zip(PLACES, sizes, strict=True))

    @property
    def tiers(self) -> dict[str, MemoryAccount]:
        """Place → bytes that lie there; activations are checkpoints. Bytes that pass through come on top."""
        states = held(self.model, 1, 0, 0) + MemoryAccount(activations=kept(self.model, self.sequences))
        places = {category: getattr(self, state) for category, state in zip(CATEGORIES, STATES)}
        return {
            place: MemoryAccount(**{category: states[category] for category, its in places.items() if its == place})
            for place in PLACES
        }

    @property
    def travels(self) -> dict[str, Travel]:
        """State → its cost in its place."""
        return {state: self._travel(state, category) for state, category in zip(STATES, CATEGORIES)}

    def _travel(self, state: OffloadedState, category: str) -> Travel:
        place, speed = getattr(self, state), speed_of(self.gpu)
        intensity, bytes_per_s = intensity_of(state, self.model, self.sequences), self._bandwidth(state, place)
        efficiency = None if place == "GPU" else link_efficiency(intensity, bytes_per_s, speed)
        needed = bandwidth_for(GOAL, intensity, speed)
        return Travel(place, self.tiers[place][category], intensity, bytes_per_s, needed, efficiency)

    def _bandwidth(self, state: str, place: str) -> float:
        """Bytes a second of the slowest part of the way, to the GPU or, if the processor updates, to the processor."""
        if place == "GPU":
            return GPUS[self.gpu].memory_bytes_per_s
        near = state == "optimizer" and self.processor
        way = [MEMORIES[self.memory].bytes_per_s if near else LINKS[self.link]]
        return min(way + [DISKS[self.disk].bytes_per_s] * (place == "disk"))

    def _picture(self, *, caption: str, alt: str) -> Picture:
        efficiencies = {state: travel.efficiency for state, travel in self.travels.items()}
        return fill_of_tiers(self.tiers, self.capacities, efficiencies, caption=caption, alt=alt)

    def _told(self) -> str:
        tiers = " ".join(
            f"{place} {account.total:.1GiB} of {self.capacities[place]:.0GiB}"
            f"{'' if account.total <= self.capacities[place] else ', too much'};"
            for place, account in self.tiers.items()
        )
        states = " ".join(f"{state.capitalize()} {_cost(travel)}." for state, travel in self.travels.items())
        return f"{self.model} beside one {self.gpu}, {self.sequences} sequences. In {tiers.rstrip(';')}. {states}"


def _cost(travel: Travel) -> str:
    if travel.efficiency is None:
        return "stay on the GPU"
    has, needed = (f"{each / 1e9:,.{0 if each >= 1e10 else 1}f} GB/s" for each in (travel.bytes_per_s, travel.needed))
    where = f"in {travel.place}" if travel.place == "main memory" else "on disk"
    return f"{where}: {has}, the GPU computes {float(travel.efficiency):.0%} of the time; {GOAL:.0%} takes {needed}"

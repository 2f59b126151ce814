"""The map of layouts: tensor × pipeline ranks as cells, the seconds of a step as colour, published runs as dots.

`cells` asks the planner for each place of the controls. Stages are cut as the published runs cut theirs (by cost), so
that a dot and its cell are the same run.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture
from course_lib.model import hardware, zoo
from course_lib.predict.planner import constants_for
from course_lib.predict.planner.cost import memory, seconds
from course_lib.predict.planner.work import Layouts, work
from course_pages.lesson17 import truth
from course_pages.lesson17.pictures import layout_map

RUNS = {"1B on 8": ("llama-like-1B", 8), "8B on 8": ("llama-like-8B", 8), "80B on 64": ("llama-like-80B", 64)}
GPUS = {"H100": hardware.H100_80GB, "A100": hardware.A100_80GB}
TENSOR, PIPELINE, ZERO, MICRO = (1, 2, 4, 8), (1, 2, 4, 8, 16), (0, 1, 3), (1, 2, 4, 8)
BATCH, SEQ = 256, 4096
SHAPES = {
    "llama-like-1B": (16, 2048, 32, 32, 8192, 131_072, SEQ, True),
    "llama-like-8B": (32, 4096, 32, 32, 14_336, 131_072, SEQ, True),
    "llama-like-80B": (80, 8192, 64, 64, 28_672, 131_072, SEQ, True),
}


class Cell(NamedTuple):
    """Costs of a layout, in seconds and GB of its fullest GPU."""

    work: float  # seconds of a step at work
    bubble: float  # seconds in which a rank waits for other stages
    sent: float  # seconds for the data axis
    rest: float  # seconds for all else
    states: float  # GB of weights, gradients and optimizer
    kept: float  # GB of tensors that autograd keeps
    other: float  # GB of copies, buffers, the process
    launches: bool  # whether a block waits for its launches, and not for its products

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.work + self.bubble + self.sent + self.rest

    @property
    def gb(self) -> float:
        """GB of the fullest GPU."""
        return self.states + self.kept + self.other


@cache
def cells(run: str, gpu: str, zero: int, micro: int, recompute: bool) -> dict[tuple[int, int], Cell]:
    """(tensor, pipeline) → costs of the layout, for legal ones."""
    (model, gpus), tied = RUNS[run], "1B" in run
    legal = [(t, p) for t, p in product(TENSOR, PIPELINE) if _is_legal(model, gpus, t, p, zero, micro)]
    if not legal:
        return {}
    t, p = np.array(legal).T
    one = np.ones_like(t)
    each = Layouts(t, p, gpus // (t * p), one, one, zero * one, micro * one, one, recompute * one, BATCH * one)
    config = zoo.Architecture(*SHAPES[model], positions="rotary", tied=tied)
    counted = work(config, SEQ, each, np.array([_blocks(model)[stages] for stages in p]))
    constants = constants_for(GPUS[gpu])
    took = seconds(counted, constants, float(GPUS[gpu].peak("bf16")))
    held = memory(counted, constants, whole=False)
    fullest = (np.arange(len(t)), held.argmax(1))
    floor = np.where(t > 1, constants.launch_tensor_s, constants.launch_s) * counted.passes / 3
    found = {}
    for n, place in enumerate(legal):
        busy, bubble, sent = (float(took[name][n]) for name in ("work", "bubble", "data"))
        kept = float((counted.kept * np.where(t > 1, constants.kept_tensor, constants.kept)[:, None])[fullest][n]) / 1e9
        states = float(counted.states[fullest][n]) / 1e9
        other = float(held[fullest][n]) / 1e9 - states - kept
        waits = bool(took["block"][n] <= floor[n])
        found[place] = Cell(busy, bubble, sent, constants.fixed_s, states, kept, other, waits)
    return found


def _is_legal(model: str, gpus: int, t: int, p: int, zero: int, micro: int) -> bool:
    data = gpus // (t * p)
    return p in _blocks(model) and data >= 1 and BATCH % (max(1, data) * micro) == 0 and not (zero and data == 1)


@cache
def _blocks(model: str) -> dict[int, list[int]]:
    """Blocks of the first, the fullest and the last stage by the number of stages, as the published runs have them."""
    runs = truth.read()["H100 nanotron"]
    mine = np.flatnonzero((runs.model == model) & ~runs.illegal)
    return {int(runs.work.layouts.pipeline[n]): runs.work.blocks[n].astype(int).tolist() for n in mine}


@cache
def published(run: str, zero: int, micro: int) -> dict[tuple[int, int], tuple[float | None, float | None]]:
    """(tensor, pipeline) → seconds and GB of the published run on H100s without recompute; None where the run died."""
    (model, gpus), runs = RUNS[run], truth.read()["H100 nanotron"]
    each = runs.work.layouts
    same = (runs.model == model) & (runs.gpus == gpus) & (each.zero == zero) & (each.micro_batch == micro)
    found = {}
    for n in np.flatnonzero(same & np.isin(each.tensor, TENSOR) & np.isin(each.pipeline, PIPELINE)):
        seconds, gb = (None if math.isnan(value) else float(value) for value in (runs.seconds[n], runs.gigabytes[n]))
        found[int(each.tensor[n]), int(each.pipeline[n])] = seconds, gb
    return found


def room(gpu: str) -> float:
    """GB of a GPU that a run can fill."""
    return constants_for(GPUS[gpu]).fillable * GPUS[gpu].usable / 1e9


@cache
def map_table() -> dict[str, Any]:
    """Cells by "run,gpu,zero,micro,recompute", published runs by "run,zero,micro", both then by "t,p"; GPUs' room."""
    maps = {}
    for run, gpu, zero, micro, recompute in product(RUNS, GPUS, ZERO, MICRO, (False, True)):
        found = cells(run, gpu, zero, micro, recompute)
        key = f"{run},{gpu},{zero},{micro},{int(recompute)}"
        maps[key] = {f"{t},{p}": [_short(number) for number in each] for (t, p), each in found.items()}
    dots = {}
    for run, zero, micro in product(RUNS, ZERO, MICRO):
        dots[f"{run},{zero},{micro}"] = {f"{t},{p}": each for (t, p), each in published(run, zero, micro).items()}
    rooms = {gpu: room(gpu) for gpu in GPUS}
    return {"maps": maps, "dots": dots, "room": rooms, "tensor": TENSOR, "pipeline": PIPELINE}


def _short(number: float) -> float:
    return int(number) if isinstance(number, bool) else float(f"{number:.3g}")


class MapExplorer(Explorer):
    """Layouts of a model on a cluster, one cell each.

    Args:
        run: model and number of GPUs: "1B on 8", "8B on 8", "80B on 64".
        gpu: "H100" or "A100".
        zero, micro, recompute: ZeRO's stage, sequences of a micro-batch, whether whole blocks are recomputed.
        tensor, pipeline: the selected cell.
    """

    caption = "A cell is a layout, darker where a step takes longer, hatched where a GPU is too small. Who is fastest?"
    run = Control("Model, GPUs", tuple(RUNS), "8B on 8", kind="choice")
    gpu = Control("GPU", tuple(GPUS), "H100", kind="choice")
    zero = Control("ZeRO", ZERO, 0)
    micro = Control("Micro-batch", MICRO, 1)
    recompute = Control("Recompute blocks", (False, True), False, kind="switch")
    tensor = Control("Tensor ranks", TENSOR, 2)
    pipeline = Control("Stages", PIPELINE, 2)
    _table = staticmethod(map_table)

    @property
    def found(self) -> dict[tuple[int, int], Cell]:
        """The cells that are shown."""
        return cells(self.run, self.gpu, self.zero, self.micro, self.recompute)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        is_published, place = self.gpu == "H100" and not self.recompute, (self.tensor, self.pipeline)
        dots = published(self.run, self.zero, self.micro) if is_published else {}
        return layout_map(self.found, dots, room(self.gpu), place, (TENSOR, PIPELINE), caption=caption, alt=alt)

    def _told(self) -> str:
        fit = {place: each for place, each in self.found.items() if each.gb <= room(self.gpu)}
        chosen = f"{self.run} {self.gpu}s, ZeRO-{self.zero}, micro-batches of {self.micro}"
        words = f"{chosen}: {len(self.found)} legal cells"
        if not fit:
            return f"{words}, none of which fits."
        (t, p), best = min(fit.items(), key=lambda item: item[1].step)
        fastest = f"tensor {t}, {p} stage{'s' * (p > 1)} with {best.step:.1f} s and {best.gb:.0f} GB"
        return f"{words}, {len(fit)} fit; the fastest is {fastest}."

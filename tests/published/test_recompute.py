"""What papers print about recompute, computed again by this library."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.predict import Setup
from course_lib.predict.chain import Chain
from tests.predict import papers

from .rows import figures, rows_of, within

READS = ("lessons/src/03_*.py",)
ROWS = rows_of(__file__)
MODELS = {"175b": zoo.GPT3_175B, "530b": zoo.MT_NLG_530B}
STEPS = {"175b": (64, 64), "530b": (280, 280)}
"""Sequences in the batch and GPUs of Korthikanti et al. 2022, Table 3."""
TP = {"tensor": 8}
SP = {"tensor": 8, "sequence_parallel": True}
TABLE_2 = [{}, TP, SP, TP | {"recompute": "selective"}, SP | {"recompute": "selective"}, TP | {"recompute": "full"}]


def setup(name: str, batch: int = 1) -> Setup:
    return Setup(MODELS[name], batch, 2048, precision="mixed")


def layer(name: str, **how) -> int:
    return predict.activations_paper(setup(name).with_(**how), layers=1)


def scores_over_stream(name: str) -> float:
    return (layer(name) - layer(name, recompute="selective")) / layer(name, recompute="full") * 2


def saving(name: str) -> float:
    return 1 - layer(name, recompute="selective") / layer(name)


def overhead_in_print(name: str, batch: int = 1) -> float:
    """Eq. 8 / eq. 7 - 1. The paper counts the scores' products of the backward pass as recomputed, too: three times
    what `measure.flops` counts."""
    plain = setup(name, batch)
    return papers.step_flops(plain.with_(recompute="selective")) / papers.step_flops(plain) - 1


def hardware_utilization(name: str) -> float:
    batch, gpus = STEPS[name]
    flops = papers.step_flops(setup(name, batch).with_(recompute="selective"))
    seconds = ROWS[f"korth_t5_{name}_hfu"]["inputs"]["seconds"]
    return 100 * predict.utilization(flops, seconds, gpus, hardware.A100_80GB.peak("bf16"))


def first_stage_gib(name: str) -> list[float]:
    """Eq. 5: what an interleaved pipeline's first stage holds, each micro-batch in flight in one of its `m` chunks."""
    i = ROWS[f"korth_total_{name}"]["inputs"]
    whole = setup(name, STEPS[name][0]).with_(micro_batch=1, pipeline=i["p"])
    layers = predict.in_flight(whole, 0, "interleaved", i["m"]) * i["L"] / (i["p"] * i["m"])
    ways = [TP, SP, SP | {"recompute": "selective"}, {"recompute": "full"}]
    return [layers * layer(name, **how) / 2**30 for how in ways]


def best(L: int) -> list[int]:
    root = min((k for k in range(1, L + 1) if L % k == 0), key=lambda k: (L // k + k, k))
    return [root, int(Chain(L, boundary_bytes=1, saved_bytes=1).peak(root))]


def root_of_the_depth(b: int, s: int) -> float:
    """ZeRO's rule: with recompute, a root of the depth remains of 12 tensors as large as a layer's input."""
    xl = Setup(zoo.GPT2_XL, b, s, precision="mixed")
    return 12 * math.sqrt(xl.gpt.layers) * predict.block_input(xl).to("GB")


CHAIN = Chain(48, boundary_bytes=1, saved_bytes=1)


def runs(every: int | None) -> int:
    """Of a layer's forward pass, in a step; a backward pass counts two."""
    return sum(frame.duration for frame in CHAIN.film(every))


OF_A_MODEL: dict[str, Callable[[str], float | list[float]]] = {
    "korth_{}_5as_h": scores_over_stream,
    "korth_{}_sel_saving": saving,
    "korth_{}_sel_flop_ovh": overhead_in_print,
    "korth_act_{}_layer": lambda name: [layer(name, **how) for how in TABLE_2],
    "korth_{}_reduction": lambda name: layer(name, **TP) / layer(name, **SP, recompute="selective"),
    "korth_total_{}": first_stage_gib,
    "korth_t5_{}_hfu": hardware_utilization,
}
COMPUTED: dict[str, Callable[..., float | list[float] | list[int]]] = {
    **{row.format(name): partial(formula, name) for row, formula in OF_A_MODEL.items() for name in MODELS},
    "zero_act_1p5b_ckpt": root_of_the_depth,
    "zero_recompute_overhead": lambda: runs(7) / runs(None) - 1,
    "ckpt_flops": lambda: runs(7) / runs(None),
    **{name: best for name in ROWS if name.startswith("ckpt_L")},
}
MEASURED_BY_OTHERS = {"korth_t4_recompute_ovh"}
"""Milliseconds, which no formula of ours yields; the lesson quotes them."""
LESSON = Path(__file__).parents[2] / "lessons" / "src" / "03_activation_checkpointing.py"


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED, MEASURED_BY_OTHERS)


def test_lesson_03_quotes_what_others_measured() -> None:
    row = ROWS["korth_t4_recompute_ovh"]
    combined, base = row["inputs"]["combined"], row["inputs"]["base"]
    assert 100 * (combined / base - 1) == within(row)
    assert f"{row['value']} % on their 22B layer (Table 4)" in LESSON.read_text("utf-8")


def test_the_printed_overhead_is_three_times_what_runs_again() -> None:
    """One layer of attention's two products forward is 4·s²·b·h; eq. 8 less eq. 7 is 12·s²·b·h."""
    for name, shape in MODELS.items():
        config, s, plain = shape.config, 2048, setup(name)
        again = predict.recomputed_flops(plain.with_(recompute="selective"))
        assert again == config.layers * 4 * s * s * config.width
        eq_7_to_8 = 72 * config.layers * s * config.width**2 * (s / (3 * config.width) - s / (6 * config.width))
        assert eq_7_to_8 == pytest.approx(3 * again)
        assert overhead_in_print(name) == pytest.approx(3 * again / predict.step_flops(plain))

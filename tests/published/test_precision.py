"""What data sheets and papers print about 16 bits, beside what this library says: peaks, bytes, limits of formats.

`precision.json` holds each figure; see `rows.py`.
"""

from collections.abc import Callable

import pytest

from course_kit.units import FlopsPerSecond
from course_lib import predict
from course_lib.model import hardware
from course_lib.numerics import BF16, FP16, FloatFormat
from course_lib.predict import Setup

from .rows import rows_of, within

ROWS = rows_of(__file__)
GPUS = {"a100": hardware.A100_80GB, "h100_sxm": hardware.H100_80GB, "v100": hardware.V100_16GB}


UNITS_OF = {"a100": hardware.A100_80GB, "h100": hardware.H100_80GB}
"""Cards whose peak follows from a clock, a number of tensor cores, and what each of them does in a cycle."""


def tflops(row: str) -> float:
    """`hw_[sparse_]GPU_FORMAT`, in TFLOP/s."""
    name, number_format = row.removeprefix("hw_").removeprefix("sparse_").rsplit("_", 1)
    return GPUS[name].peak(number_format, sparse="_sparse_" in row) / 1e12


def limits(fmt: FloatFormat) -> list[float]:
    return [fmt.exponent_bits, fmt.fraction_bits, fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.eps]


def with_fp32_gradients() -> int:
    """Weight in 16 bits; gradient, copy, mean and variance in fp32."""
    return predict.model_states(Setup(1, precision="mixed", gradients="fp32")).total


COMPUTED: dict[str, Callable[[], float | list[float]]] = {
    **{row: lambda row=row: tflops(row) for row in ROWS if row.startswith("hw_") and not row.endswith("_derived")},
    **{f"hw_{card}_derived": lambda gpu=gpu: gpu.peak("bf16").to("TFLOP/s") for card, gpu in UNITS_OF.items()},
    "zero_1p5b_fp16": lambda: predict.model_states(Setup(1.5e9, precision="mixed")).parameters / 1e9,
    "zero_fig1_stage0": lambda: predict.model_states(Setup(7.5e9, precision="mixed")).total / 1e9,
    "megatron_bytes_per_param": with_fp32_gradients,
    "stas_bytes_per_param": with_fp32_gradients,
    "fmt_fp16": lambda: limits(FP16),
    "fmt_bf16": lambda: limits(BF16),
}


def test_every_row_is_computed() -> None:
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    assert COMPUTED[name]() == within(ROWS[name])


@pytest.mark.parametrize("card", UNITS_OF)
def test_peaks_are_units_times_clock(card: str) -> None:
    i = ROWS[f"hw_{card}_derived"]["inputs"]
    by_units = FlopsPerSecond(i["clock_hz"] * i["tensor_cores"] * i["multiply_adds"] * 2)
    assert by_units == pytest.approx(UNITS_OF[card].peak("bf16"), rel=0.001)


def test_sparse_peaks_are_never_taken_for_dense_ones() -> None:
    for row in (row for row in ROWS if "_sparse_" in row):
        assert ROWS[row]["value"] == pytest.approx(2 * tflops(row.replace("sparse_", "")), rel=0.001)

"""Named GPUs: their peaks follow from clock and units, and what they hold is counted as their makers count it."""

import pytest

from course_kit.units import Bytes
from course_lib.model import hardware
from tests.predict.refused import refused


def test_dense_and_sparse_are_told_apart() -> None:
    assert hardware.H100_80GB.peak("bf16") == 989.4e12
    assert hardware.H100_80GB.peak("bf16", sparse=True) == 1978.8e12


test_formats_without_units_are_refused = refused(
    (lambda: hardware.V100_16GB.peak("fp16", sparse=True), "no 2:4 sparsity"),
    (lambda: hardware.A100_40GB.peak("fp32", sparse=True), "no 2:4 sparsity in 'fp32'"),
    (lambda: hardware.V100_16GB.peak("bf16"), "V100 16GB; known are fp64, fp32, fp16"),
)


@pytest.mark.parametrize(
    ("gpu", "number_format", "clock", "units", "each", "rel"),
    [
        (hardware.A100_80GB, "bf16", 1410e6, 432, 256, 0.001),
        (hardware.H100_80GB, "bf16", 1830e6, 528, 512, 0.001),
        (hardware.V100_32GB, "fp16", 1530e6, 640, 64, 0.003),
        (hardware.T4, "fp16", 1590e6, 320, 64, 0.003),
        (hardware.L4, "bf16", 2040e6, 240, 128, 0.04),
        (hardware.RTX_3090, "fp16", 1695e6, 328, 64, 0.003),
        (hardware.RTX_4090, "fp16", 2520e6, 512, 64, 0.003),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_tensor_core_peaks_follow_from_clock_and_units(gpu, number_format, clock, units, each, rel) -> None:
    """Clock × tensor cores × multiply-adds per clock × 2, from the architecture whitepapers."""
    assert gpu.peak(number_format) == pytest.approx(clock * units * each * 2, rel=rel)


def test_memory_is_counted_as_its_makers_count() -> None:
    assert hardware.A100_80GB.memory == Bytes(80 * 2**30)
    assert f"{hardware.A100_80GB.memory:.1GB}" == "85.9 GB"
    assert {gpu.name for gpu in hardware.ALL} >= {"T4", "L4", "A100 40GB", "H100 SXM 80GB"}


def test_a_process_sees_less_than_the_maker_counts() -> None:
    """A T4 is sold with 16 GB, and PyTorch's messages on it say 14.56 to 14.76 GiB."""
    assert f"{hardware.T4.usable:.2GiB}" == "14.56 GiB"
    for gpu in hardware.ALL:
        assert 0.9 * gpu.memory < gpu.usable < 0.995 * gpu.memory, gpu.name

"""Named GPUs: their peaks follow from clock and units, and what they hold is counted as their makers count it."""

import pytest

from course_kit.units import Bytes
from course_lib.model import hardware


def test_dense_and_sparse_are_told_apart() -> None:
    assert hardware.H100_80GB.peak("bf16") == 989.4e12
    assert hardware.H100_80GB.peak("bf16", sparse=True) == 1978.8e12
    with pytest.raises(ValueError, match="no 2:4 sparsity"):
        hardware.V100_16GB.peak("fp16", sparse=True)
    with pytest.raises(ValueError, match="no 2:4 sparsity in 'fp32'"):
        hardware.A100_40GB.peak("fp32", sparse=True)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="V100 16GB; known are fp64, fp32, fp16"):
        hardware.V100_16GB.peak("bf16")


def test_tensor_core_peaks_follow_from_clock_and_units() -> None:
    """Clock × tensor cores × multiply-adds per clock × 2, from the architecture whitepapers."""
    assert hardware.A100_80GB.peak("bf16") == pytest.approx(1410e6 * 432 * 256 * 2, rel=0.001)
    assert hardware.H100_80GB.peak("bf16") == pytest.approx(1830e6 * 528 * 512 * 2, rel=0.001)
    assert hardware.V100_32GB.peak("fp16") == pytest.approx(1530e6 * 640 * 64 * 2, rel=0.003)
    assert hardware.T4.peak("fp16") == pytest.approx(1590e6 * 320 * 64 * 2, rel=0.003)
    assert hardware.L4.peak("bf16") == pytest.approx(2040e6 * 240 * 128 * 2, rel=0.04)
    assert hardware.RTX_3090.peak("fp16") == pytest.approx(1695e6 * 328 * 64 * 2, rel=0.003)
    assert hardware.RTX_4090.peak("fp16") == pytest.approx(2520e6 * 512 * 64 * 2, rel=0.003)


def test_memory_is_counted_as_its_makers_count() -> None:
    assert hardware.A100_80GB.memory == Bytes(80 * 2**30)
    assert f"{hardware.A100_80GB.memory:.1GB}" == "85.9 GB"
    assert {gpu.name for gpu in hardware.ALL} >= {"T4", "L4", "A100 40GB", "H100 SXM 80GB"}


def test_a_process_sees_less_than_the_maker_counts() -> None:
    """A T4 is sold with 16 GB, and PyTorch's messages on it say 14.56 to 14.76 GiB."""
    assert f"{hardware.T4.usable:.2GiB}" == "14.56 GiB"
    for gpu in hardware.ALL:
        assert 0.9 * gpu.memory < gpu.usable < 0.995 * gpu.memory, gpu.name

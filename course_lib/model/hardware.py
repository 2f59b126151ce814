"""Named GPUs: memory, peak FLOP/s and bandwidths, each card with the source of its figures.

Three conventions hide in such tables, and each is worth a factor of two or 7 %:

- peaks here are *dense*; data sheets since 2020 like to print the peak with 2:4 sparsity, which is twice as high and
  which no training run in this course uses;
- link speeds here are for *one direction*; NVLink figures in print add both;
- a data sheet's "80 GB" of GPU memory are 80 GiB (part of which the driver keeps: `usable` is the rest), while its
  GB/s are 10^9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_kit.units import Bytes, FlopsPerSecond


@dataclass(frozen=True)
class GPU:
    """One accelerator's memory and peak rates.

    Attributes:
        name: the name under which the card is sold.
        memory: bytes on the card, as its maker counts them.
        usable: bytes that a process sees, CUDA's own among them: PyTorch's "total capacity" in out-of-memory messages
            that users quote in issues on GitHub, 2021 to 2026. Drivers differ by 1 %; this is the least found.
        dense_flops_per_s: format → peak FLOP/s without sparsity. "fp16" and "bf16" mean tensor cores with fp32 sums
            where the card has them, "fp32" the ordinary units.
        has_sparsity: whether 2:4 sparsity doubles the tensor cores' peaks.
        memory_bytes_per_s: bandwidth of its memory.
        link_bytes_per_s: bandwidth to another GPU of the same machine in *one* direction (NVLink, or PCIe without it).
        source: documents that the figures were read in.
    """

    name: str
    memory: Bytes
    usable: Bytes
    dense_flops_per_s: Mapping[str, float]
    has_sparsity: bool
    memory_bytes_per_s: float
    link_bytes_per_s: float
    source: str

    def peak(self, number_format: str, sparse: bool = False) -> FlopsPerSecond:
        """Peak FLOP/s in `number_format` ("fp32", "tf32", "bf16", …); `sparse=True` gives the data sheet's 2:4 figure.

        Raises:
            ValueError: the card has no such units.
        """
        if number_format not in self.dense_flops_per_s:
            known = ", ".join(self.dense_flops_per_s)
            raise ValueError(f"no peak in {number_format!r} is known for the {self.name}; known are {known}")
        # fp64 and fp32 run in the ordinary units, and 2:4 sparsity is the tensor cores'
        if sparse and not (self.has_sparsity and number_format not in ("fp64", "fp32")):
            raise ValueError(f"the {self.name} has no 2:4 sparsity in {number_format!r}; ask for sparse=False")
        return FlopsPerSecond(self.dense_flops_per_s[number_format] * (2 if sparse else 1))


def _gpu(
    name: str, memory_gib: int, usable_gib: float, tflops: dict[str, float], memory_gb_per_s: float,
    link_gb_per_s: float, source: str, has_sparsity: bool = True,
) -> GPU:  # fmt: skip
    peaks = {number_format: value * 10**12 for number_format, value in tflops.items()}
    memory = Bytes(memory_gib * 2**30)  # not 10^9: the third convention above
    usable = Bytes(round(usable_gib * 2**30))
    return GPU(name, memory, usable, peaks, has_sparsity, memory_gb_per_s * 10**9, link_gb_per_s * 10**9, source)


_STAS = "stas00/ml-engineering, accelerators and network chapters"
_V100 = {"fp64": 7.8, "fp32": 15.7, "fp16": 125}
_A100 = {"fp64": 9.7, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_HOPPER = {"fp64": 33.5, "fp32": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9}
_T4 = {"fp32": 8.1, "fp16": 65, "int8": 130}
_L4 = {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242.5}
_3090 = {"fp32": 35.6, "tf32": 35.6, "fp16": 71.2, "bf16": 71.2}
_4090 = {"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3}

_READ = "read in the tables of hmc-tech.com (T4) and waredb.com (4090)"
_GA102 = "tensor peaks by the ratios of hmc-tech.com's table of the 3090 Ti, link as in the A40's data sheet: one chip"
_V100_SHEET = "NVIDIA V100 data sheet (SXM2); Cornell Virtual Workshop, GPU architecture; llm-analysis gpu_configs"
T4 = _gpu("T4", 16, 14.56, _T4, 320, 16, f"NVIDIA T4 data sheet, {_READ}", has_sparsity=False)
V100_16GB = _gpu("V100 16GB", 16, 15.78, _V100, 900, 150, _V100_SHEET, has_sparsity=False)
V100_32GB = _gpu("V100 32GB", 32, 31.74, _V100, 900, 150, _V100_SHEET, has_sparsity=False)
RTX_3090 = _gpu("RTX 3090", 24, 23.70, _3090, 936, 56.25, f"NVIDIA Ampere GA102 whitepaper v2, Table 9; {_GA102}")
RTX_4090 = _gpu("RTX 4090", 24, 23.52, _4090, 1008, 32, f"NVIDIA Ada whitepaper, appendix A, {_READ}")
L4 = _gpu("L4", 24, 22.03, _L4, 300, 32, "NVIDIA L4 data sheet (sparse peaks, halved), read at store.sourcecode.com")
A100_40GB = _gpu("A100 40GB", 40, 39.50, _A100, 1555, 300, _STAS)
A100_80GB = _gpu("A100 80GB", 80, 79.25, _A100, 2039, 300, _STAS)
H100_80GB = _gpu("H100 SXM 80GB", 80, 79.11, _HOPPER, 3350, 450, f"{_STAS}; glennklockwood.com")
H200_141GB = _gpu("H200 141GB", 141, 139.72, _HOPPER, 4800, 450, f"{_STAS}; glennklockwood.com")

ALL: tuple[GPU, ...] = tuple(gpu for gpu in globals().values() if isinstance(gpu, GPU))
"""Every card of this module."""

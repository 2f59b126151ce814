"""The planner's constants fitted on some published runs, and its predictions for the others.

`benchmarks/planner.py` keeps the constants of all runs; here a fit sees two thirds of them, and the last third judges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import least_squares

from course_lib.predict.planner.cost import Constants
from course_pages.lesson17 import truth

_TIME = ["gemm_efficiency", "attention_efficiency", "half_width", "nic_bytes_per_s", "fixed_s"]
MEMORY = ["kept", "kept_tensor", "gradient_bytes", "logit_bytes", "whole_bytes", "process_bytes"]
_NARAYANAN, _KORTHIKANTI = ["megatron-2021-t1", "megatron-2021-t2"], ["korthikanti-2022-t5", "korthikanti-dp8"]
_UNFUSED = {"attention_efficiency": 0.18, "link_bytes_per_s": 250e9}  # softmax with its scores in memory; NCCL's rate
MACHINES: dict[str, dict[str, Any]] = {
    "H100 nanotron": {
        "sources": ["ultrascale"], "peak": 989.4e12, "default_for": "H100",
        "free": [
            "gemm_efficiency", "half_width", "nic_bytes_per_s", "fixed_s", "launch_s", "launch_tensor_s",
            "link_bytes_per_s", "zero_slowness", *MEMORY,
        ],
        "fixed": {"hidden": 0.0, "attention_efficiency": 0.6},  # all rows have 4,096 tokens, which leave this open
    },
    "H100 FSDP": {
        "sources": ["mosaicml"], "gpu": "H100", "precision": "bf16", "peak": 989.4e12,
        "free": [*_TIME, "message_s"], "fixed": {"hidden": 0.0},
    },
    "H100 FSDP fp8": {
        "sources": ["mosaicml"], "gpu": "H100", "precision": "fp8", "peak": 1978.9e12,
        "free": ["gemm_efficiency", "attention_efficiency"],
        "fixed": {"hidden": 0.0, "half_width": 1000.0},
    },
    "A100 Megatron-DeepSpeed": {
        "sources": ["bigscience-prequel", "bigscience-final"], "peak": 312e12,
        "free": ["gemm_efficiency", "half_width", "kept_tensor", "process_bytes"],
        "fixed": {
            "hidden": 0.0, "link_bytes_per_s": 300e9, "nic_bytes_per_s": 25e9, "attention_efficiency": 0.4,
            "whole_bytes": 0.0, "gradient_bytes": 2.0,
        },
    },
    "A100 MT-NLG": {
        "sources": ["mt-nlg-2022"], "peak": 312e12, "free": ["gemm_efficiency"],
        "fixed": {"hidden": 0.0, "half_width": 60.0, "link_bytes_per_s": 300e9, "nic_bytes_per_s": 25e9},
    },
    "A100 Megatron-LM": {
        "sources": [*_NARAYANAN, *_KORTHIKANTI, "megascale-2024"],
        "software": ("", "Megatron-LM", "baseline"), "peak": 312e12,
        "default_for": "A100",
        "free": ["gemm_efficiency", "nic_bytes_per_s", "message_s"],
        "fixed": {"hidden": 0.0, "half_width": 60.0, "fixed_s": 0.05, **_UNFUSED},
    },
    "A100 MegaScale": {
        "sources": ["megascale-2024"], "software": ("MegaScale",), "peak": 312e12, "free": ["gemm_efficiency"],
        "fixed": {"hidden": 0.0, "half_width": 60.0, "link_bytes_per_s": 300e9, "nic_bytes_per_s": 25e9},
    },
    "H100 torchtitan": {  # FSDP fetches the next block behind the products of this one; 2.4 TB/s by its own page
        "sources": ["torchtitan"], "gpu": "H100", "peak": 989.4e12,
        "free": ["gemm_efficiency", "crossings"],
        "fixed": {
            "hidden": 1.0, "half_width": 60.0, "launch_tensor_s": 2e-3, "crossings": 8.0, "hbm_bytes_per_s": 2.4e12,
            "attention_efficiency": 0.32,  # as the rows of H100 FSDP tell
        },
    },
    "A100 Megatron-LM, January 2021": {
        "sources": ["megatron-readme-jan2021"], "peak": 312e12,
        "free": ["gemm_efficiency", "half_width"], "fixed": {"hidden": 0.0, "nic_bytes_per_s": 14e9, **_UNFUSED},
    },
    "A100 FSDP": {
        "sources": ["mosaicml"], "gpu": "A100", "peak": 312e12,
        "free": [*_TIME, "message_s"], "fixed": {"hidden": 0.0},
    },
}  # fmt: skip
START = Constants(
    gemm_efficiency=0.6, attention_efficiency=0.4, half_width=100, launch_s=1e-3, launch_tensor_s=4e-3,
    link_bytes_per_s=300e9, nic_bytes_per_s=50e9, hidden=0.5, fixed_s=0.02, logit_bytes=4.0, whole_bytes=3.0,
    gradient_bytes=1.0, process_bytes=5e8, fillable=0.92, message_s=2e-5,
)  # fmt: skip
for _gpu, _source, _half, _formats, _link, _nic, _node in (  # TFLOP/s dense and GB/s, as data sheets print them
    ("H100", "megatron-bridge", 989.4, {"FP8": 1978.9}, 450, 50, 8),
    ("GB200", "megatron-bridge", 2450, {"MXFP8": 4900, "FP8": 4900, "NVFP4": 9800}, 900, 50, 72),
    ("GB300", "megatron-bridge", 2450, {"MXFP8": 4900, "FP8": 4900, "NVFP4": 14_700}, 900, 100, 72),
    ("B200", "megatron-bridge", 2250, {"FP8": 4500}, 900, 50, 8),
    ("H100", "nemo-long", 989.4, {"FP8": 1978.9}, 450, 50, 8),
):  # Too few rows for more than the efficiency of a GPU in a format. Attention and head stay in 16 bits; the stream
    # between products crosses memory 8 times, about as torchtitan's rows tell, which only 4 bits show. Megatron-Bridge
    # sends behind products (its scripts/performance; in 4 bits not for tensor ranks, but rows fit better as if it did).
    _bridge = float(_source == "megatron-bridge")
    for _format, _peak in _formats.items():
        MACHINES[f"{_gpu} {_source} {_format}"] = {
            "sources": [_source], "gpu": _gpu, "precision": _format, "peak": _peak * 1e12, "node": _node,
            "free": ["gemm_efficiency"],
            "fixed": {
                "hidden": _bridge, "overlapped": _bridge, "half_width": 60.0, "launch_tensor_s": 2e-3,
                "link_bytes_per_s": _link * 1e9, "nic_bytes_per_s": _nic * 1e9, "hbm_bytes_per_s": 8e12,
                "crossings": 8.0 * (_format == "NVFP4"),
                "attention_efficiency": 0.6 * _half / _peak, "head_efficiency": 0.7 * _half / _peak * _bridge,
            },
        }  # fmt: skip
BOUNDS = {
    "gemm_efficiency": (0.1, 1), "attention_efficiency": (0.1, 1.2), "half_width": (1, 2000),
    "launch_s": (1e-5, 4e-3), "launch_tensor_s": (1e-4, 2e-2), "link_bytes_per_s": (2e10, 4.5e11),
    "nic_bytes_per_s": (1e9, 5e10), "zero_slowness": (0.5, 5), "fixed_s": (1e-5, 1), "message_s": (1e-8, 1e-3),
    "kept": (0.5, 2), "kept_tensor": (0.5, 2), "gradient_bytes": (1e-2, 8), "crossings": (0.1, 30),
    "logit_bytes": (1e-2, 30), "whole_bytes": (1e-2, 12), "process_bytes": (1e6, 2e10),
}  # fmt: skip


def fit(machine: str, runs: truth.Runs) -> Constants:
    """The constants that explain these runs best: relative errors, of which large ones count mildly."""
    constants = Constants(**{**vars(START), **MACHINES[machine].get("fixed", {})})
    free = MACHINES[machine]["free"]
    timed, held = runs.timed, runs.take(np.isfinite(runs.gigabytes))
    times = [name for name in free if name not in MEMORY]
    constants = _solve(constants, times, lambda c: truth.step_seconds(timed, c), timed.seconds)
    if spaces := [name for name in free if name in MEMORY]:
        counts = np.sqrt(held.gigabytes / 20)  # a tenth of a full GPU decides whether a run can be
        constants = _solve(constants, spaces, lambda c: truth.gigabytes(held, c), held.gigabytes, 0.03, counts)
    return constants


def _solve(
    start: Constants, names: list[str], predict: Any, measured: np.ndarray, scale: float = 0.05, counts: Any = 1
) -> Constants:
    def made(logs: np.ndarray) -> Constants:
        return Constants(**{**vars(start), **dict(zip(names, map(float, np.exp(logs))))})

    low, high = np.log([BOUNDS[name] for name in names]).T
    errors = lambda logs: counts * np.log(predict(made(logs)) / measured)  # noqa: E731
    spread = np.random.default_rng(0).normal(0, 0.5, (16, len(names)))  # from one start a last bit chooses the minimum
    firsts = np.clip(np.log([getattr(start, name) for name in names]) + spread, low + 1e-3, high - 1e-3)
    options: dict[str, Any] = {"bounds": (low, high), "loss": "soft_l1", "f_scale": scale, "x_scale": "jac"}
    ends = [least_squares(errors, first, diff_step=1e-4, **options) for first in firsts]
    return made(min(ends, key=lambda end: end.cost).x)


def held_out(folds: int = 3) -> dict[str, dict[str, np.ndarray]]:
    """Machine → seconds, gigabytes, least gigabytes, rule of thumb, each from a fit that has not seen the run.

    Also whether the run is refused: by the limit that refuses one in 200 of the runs that the fit saw and that ran.
    """
    found = {}
    for machine, runs in truth.read().items():
        fold = np.random.default_rng(17).permutation(len(runs.seconds)) % folds
        joined = {name: np.full(len(fold), np.nan) for name in ("seconds", "gigabytes", "least", "thumb", "refused")}
        for number in range(folds):
            seen, own = runs.take(fold != number), runs.take(fold == number)
            constants = fit(machine, seen)
            least = np.where(seen.illegal, np.inf, truth.least_gigabytes(seen, constants))
            made = truth.predicted(own, constants, seen.timed)
            made["refused"] = (made["least"] > np.quantile(least[~seen.failed], 0.995, method="higher")) | own.illegal
            for name, values in made.items():
                joined[name][fold == number] = values
        found[machine] = joined
    return found


def choices(runs: truth.Runs, predicted: np.ndarray) -> list[tuple[str, int, int, float]]:
    """For each model and number of GPUs: (model, GPUs, runs, the chosen run's measured time over the best measured)."""
    found = []
    usable = runs.clean & np.isfinite(runs.seconds)
    for model, gpus in sorted({(str(m), int(g)) for m, g in zip(runs.model[usable], runs.gpus[usable])}):
        own = np.flatnonzero(usable & (runs.model == model) & (runs.gpus == gpus))
        chosen = own[predicted[own].argmin()]
        found.append((model, gpus, len(own), round(float(runs.seconds[chosen] / runs.seconds[own].min()), 3)))
    return found

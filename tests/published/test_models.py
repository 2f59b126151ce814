"""Figures that papers, data sheets and repositories print about models, recomputed by this library.

Peaks of GPUs are here, dense and with 2:4 sparsity; how they come from units says tests/model/test_hardware.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from course_kit.units import Bytes, Flops, Seconds
from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.model.gpt import GPTConfig
from course_lib.numerics import BF16, FP16, FloatFormat
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.predict.setup import Recompute
from tests.predict import papers

from .rows import figures, rows_of, within

ROWS = rows_of(__file__)
A100_PEAK = hardware.A100_80GB.peak("bf16")
NANOGPT = replace(zoo.GPT2_SMALL.config, bias=False)
ONE_SEQUENCE = Setup(NANOGPT, batch_size=1, seq=1024)
YEAR = 365.25


def mfu_percent(seconds: float, gpus: int, **rest: float) -> float:
    """A row gives h, L and v as the Megatron papers do, or has those of the 530B model."""
    i: dict[str, Any] = ROWS["korth_t5_530b_mfu"]["inputs"] | rest
    config = GPTConfig(i["L"], i["h"], 128 if i["L"] == 105 else 96, i["v"], i["s"])
    return 100 * predict.utilization(papers.step_flops(Setup(config, i["B"], i["s"])), seconds, gpus, A100_PEAK)


def opt(recompute: Recompute) -> float:
    i = ROWS["opt_flops_4p30e23"]["inputs"]
    config = GPTConfig(i["l"], i["h"], 96, i["V"], i["s"])
    return papers.step_flops(Setup(config, seq=i["s"], recompute=recompute)) / i["s"] * i["B_times_s"]


def all_reduce_totals(p: int) -> list[float]:
    """All ranks' bytes over one buffer's."""
    return [
        sum(predict.all_reduce(400, p, algorithm, rank).bytes for rank in range(p)) / 400
        for algorithm in ("direct", "manager", "ring")
    ]


def tflops(row: str) -> float:
    """`hw_[sparse_]GPU_FORMAT`, in TFLOP/s."""
    name, number_format = row.removeprefix("hw_").removeprefix("sparse_").rsplit("_", 1)
    return CARDS[name].peak(number_format, sparse="_sparse_" in row) / 1e12


def limits(fmt: FloatFormat) -> list[float]:
    return [fmt.exponent_bits, fmt.fraction_bits, fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.eps]


def with_fp32_gradients() -> int:
    """Weight in 16 bits; gradient, copy, mean and variance in fp32."""
    return predict.model_states(Setup(1, precision="mixed", gradients="fp32")).total


def cache(model: zoo.Published) -> Callable[..., float]:
    """Bytes of a token, whose elements have 2 bytes where the row does not say how many."""
    return lambda bytes=2: predict.kv_cache(model, 1, 1, bytes_per_element=bytes)


def days(flops: float, devices: int, flops_per_s: float) -> float:
    return Seconds(flops / (devices * flops_per_s)).to("days")


ZOO = {
    "gpt2_small": zoo.GPT2_SMALL, "gpt2_medium": zoo.GPT2_MEDIUM, "gpt2_large": zoo.GPT2_LARGE, "gpt2_xl": zoo.GPT2_XL,
    "gopher_44m": zoo.GOPHER_44M, "gopher_117m": zoo.GOPHER_117M, "gopher_280b": zoo.GOPHER_280B,
    "chinchilla_70b": zoo.CHINCHILLA_70B, "mtnlg_530b": zoo.MT_NLG_530B, "neox_20b": zoo.NEOX_20B,
    "llama2_7b": zoo.LLAMA2_7B, "llama2_13b": zoo.LLAMA2_13B, "llama2_70b": zoo.LLAMA2_70B,
    "llama3_8b": zoo.LLAMA3_8B, "llama3_70b": zoo.LLAMA3_70B, "llama3_405b": zoo.LLAMA3_405B,
}  # fmt: skip
GPT3 = {
    "small": zoo.GPT3_SMALL, "medium": zoo.GPT3_MEDIUM, "large": zoo.GPT3_LARGE, "xl": zoo.GPT3_XL,
    "2.7b": zoo.GPT3_2_7B, "6.7b": zoo.GPT3_6_7B, "13b": zoo.GPT3_13B, "175b": zoo.GPT3_175B,
}  # fmt: skip
CARDS = {"a100": hardware.A100_80GB, "h100_sxm": hardware.H100_80GB, "v100": hardware.V100_32GB}

Computed = dict[str, Callable[..., float | list[float]]]
PARAMETERS: Computed = {
    **{f"{name}_params": lambda row=row: predict.parameters(row) for name, row in ZOO.items()},
    **{f"gpt3_{name}_params_M": lambda row=row: predict.parameters(row) / 1e6 for name, row in GPT3.items()},
    **{
        name: lambda l, h, heads, V, s: predict.parameters(GPTConfig(l, h, heads, V, s)) / 1e9  # noqa: E741
        for name in ROWS
        if name.startswith("narayanan_t1_")
    },
    **{  # Megatron-LM pads its vocabulary to 51,200
        name: lambda layers, width, heads, context: (
            predict.parameters(GPTConfig(layers, width, heads, 51_200, context)) / 1e9
        )
        for name in ROWS
        if name.startswith("shoeybi_t1_")
    },
    "gpt2_small_nobias_params": lambda: predict.parameters(NANOGPT),
    "scalingbook_llama70b": lambda: predict.parameters(zoo.LLAMA3_70B),
}
OPERATIONS: Computed = {
    **{
        name: lambda N_million, tokens: predict.training_flops(N_million * 1e6, tokens)
        for name in ROWS
        if name.startswith("gpt3_") and name.endswith("_flops")
    },
    **{name: lambda flops: Flops(flops).to("PF-day") for name in ROWS if name.endswith("_pfdays")},
    "gpt2_small_fwd_flops_seq": lambda: forward_flops(ONE_SEQUENCE),
    "gpt2_small_bwd_flops_seq": lambda: predict.step_flops(ONE_SEQUENCE) - forward_flops(ONE_SEQUENCE),
    "gpt2_small_total_flops_seq": lambda: predict.step_flops(ONE_SEQUENCE),
    "gpt2_small_palm_flops_seq": lambda: (
        1024 * papers.palms_token_flops(ONE_SEQUENCE, predict.parameters(NANOGPT) - 1024 * 768)
    ),
    "pfday_check": lambda: Flops.units["PF-day"],
    "chin_6nd": lambda: predict.training_flops(70e9, 1.4e12),
    "scalingbook_flops_tok": lambda: predict.training_flops(70e9, 1),
    "scalingbook_flops_15T": lambda: predict.training_flops(70e9, 15e12),
    "llama3_405b_flops": lambda: predict.training_flops(405e9, 15.6e12),
    "opt_flops_4p30e23": lambda: opt("full"),
    "opt_model_flops": lambda: opt("none"),
}
TIME: Computed = {
    "nanogpt_mfu": lambda: predict.utilization(
        predict.step_flops(ONE_SEQUENCE.with_(batch_size=100)), 0.755, 1, A100_PEAK
    ),
    "nanogpt_days_300B": lambda: days(predict.training_flops(predict.parameters(NANOGPT), 300e9), 8, 0.3 * A100_PEAK),
    "scalingbook_days": lambda: days(predict.training_flops(70e9, 15e12), 8960, 0.4 * 459e12),
    "narayanan_train_175b": lambda: days(predict.training_flops(175e9, 300e9, recompute="full"), 1024, 140e12),
    "narayanan_train_1t": lambda: days(predict.training_flops(1e12, 450e9, recompute="full"), 3072, 163e12),
    "gpt3_355y": lambda: days(3.14e23, 1, 28e12) / YEAR,
    **{name: mfu_percent for name in ROWS if name.endswith("_mfu") and "korth" in name},
}
MEMORY: Computed = {
    "kv_llama2_7b_fp16": cache(zoo.LLAMA2_7B),
    "kv_llama3_8b_bf16": cache(zoo.LLAMA3_8B),
    "kv_llama_70b_bf16": cache(zoo.LLAMA3_70B),
    "kv_llama_70b_int8": cache(zoo.LLAMA3_70B),
    "kv_gpt3_175b_fp16": cache(zoo.GPT3_175B),
    "kv_gpt2_small_fp16": cache(zoo.GPT2_SMALL),
    "kv_llama3_8b_1024": lambda: [predict.kv_cache(zoo.LLAMA3_8B, batch, 1024) for batch in (1, 128)],
    "kv_scalingbook_q": lambda: predict.kv_cache(GPTConfig(64, 4096, 16, 32_000, 8192), 1, 1, bytes_per_element=1),
    "kv_l3_70b_bs32_8192_int8": lambda: predict.kv_cache(zoo.LLAMA3_70B, 32, 8192, bytes_per_element=1),
    **dict.fromkeys(("megatron_bytes_per_param", "stas_bytes_per_param"), with_fp32_gradients),
    "neox_40GB": lambda: Bytes(2 * predict.parameters(zoo.NEOX_20B)).to("GB"),
    **{
        name: lambda P: predict.model_states(Setup(P, precision="mixed")).parameters.to("GiB")
        for name in ("gpu_mem_1b_fp16", "gpu_mem_175b_fp16")
    },
}
TRAFFIC: Computed = {
    "nccl_busbw_all_reduce_n8": lambda: predict.all_reduce(8000, 8).bytes / 8000,
    "nccl_busbw_reduce_scatter_n8": lambda: predict.reduce_scatter(8000, 8).bytes / 8000,
    "nccl_busbw_all_gather_n8": lambda: predict.all_gather(8000, 8).bytes / 8000,
    "nccl_busbw_alltoall_n8": lambda: predict.all_to_all(8000, 8).bytes / 8000,
    "manager_total": all_reduce_totals,
}
HARDWARE: Computed = {
    **{
        name: lambda name=name: tflops(name)
        for name in ROWS
        if name.startswith("hw_") and not name.endswith(("_hbm", "_bidir", "_derived"))
    },
    "hw_a100_derived": lambda: hardware.A100_80GB.peak("bf16") / 1e12,
    "hw_h100_derived": lambda: hardware.H100_80GB.peak("bf16") / 1e12,
    "fmt_fp16": lambda: limits(FP16),
    "fmt_bf16": lambda: limits(BF16),
    "hw_a100_80_hbm": lambda: hardware.A100_80GB.memory_bytes_per_s / 1e12,
    "hw_a100_40_hbm": lambda: hardware.A100_40GB.memory_bytes_per_s / 1e12,
    "hw_h100_sxm_hbm": lambda: hardware.H100_80GB.memory_bytes_per_s / 1e12,
    "hw_h200_hbm": lambda: hardware.H200_141GB.memory_bytes_per_s / 1e12,
    "hw_v100_hbm": lambda: hardware.V100_32GB.memory_bytes_per_s / 1e12,
    "hw_a100_nvlink_bidir": lambda: 2 * hardware.A100_80GB.link_bytes_per_s / 1e9,
    "hw_h100_nvlink_bidir": lambda: 2 * hardware.H100_80GB.link_bytes_per_s / 1e9,
    "hw_v100_nvlink_bidir": lambda: 2 * hardware.V100_32GB.link_bytes_per_s / 1e9,
}
COMPUTED = PARAMETERS | OPERATIONS | TIME | MEMORY | TRAFFIC | HARDWARE
WRONG_IN_PRINT = {"gpt3_13b_5140_wrong"}


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED, WRONG_IN_PRINT)


def test_sparse_peaks_are_never_taken_for_dense_ones() -> None:
    sparse = [name for name in ROWS if "_sparse_" in name]
    assert len(sparse) == 4
    for name in sparse:
        assert ROWS[name]["value"] == pytest.approx(2 * tflops(name.replace("sparse_", "")), rel=0.001)


def test_a_misprint_is_not_reproduced() -> None:
    """GPT-3's Table 2.1 prints a width of 5140 for 13B. Its own Table D.1 rules that out."""
    table_d1 = ROWS["gpt3_13b_params_M"]["value"] * 1e6
    misprint = replace(zoo.GPT3_13B.config, width=5140, heads=10)
    assert predict.parameters(misprint) / 1e6 == within(ROWS["gpt3_13b_5140_wrong"])
    assert predict.parameters(misprint) != pytest.approx(table_d1, rel=0.006)
    assert predict.parameters(zoo.GPT3_13B) == pytest.approx(table_d1, rel=0.0005)

"""Figures that papers, data sheets and repositories print about models, recomputed by this library.

`models.json` holds each figure; see `rows.py`. `COMPUTED` says how the library gets it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from course_kit.units import Bytes, Flops, Seconds
from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.predict.setup import Recompute
from tests.predict import papers

from .rows import rows_of, within

ROWS = rows_of(__file__)
A100_PEAK = hardware.A100_80GB.peak("bf16")
NANOGPT = replace(zoo.GPT2_SMALL.config, bias=False)
ONE_SEQUENCE = Setup(NANOGPT, batch_size=1, seq=1024)
YEAR = 365.25


def megatron(row: dict) -> GPTConfig:
    """The GPT of a row that gives h, l (or L) and V (or v) as the Megatron papers do."""
    i = row["inputs"]
    layers, vocab = i.get("l", i.get("L")), i.get("V", i.get("v"))
    return GPTConfig(layers, i["h"], i.get("heads", 128 if layers == 105 else 96), vocab, i["s"])


def mfu_percent(row: dict) -> float:
    i = row["inputs"]
    inputs = ROWS["korth_t5_530b_mfu"]["inputs"] | i
    flops = papers.step_flops(Setup(megatron({"inputs": inputs}), inputs["B"], inputs["s"]))
    return 100 * predict.utilization(flops, i["seconds"], i["gpus"], A100_PEAK)


def opt(recompute: Recompute) -> float:
    i = ROWS["opt_flops_4p30e23"]["inputs"]
    config = GPTConfig(i["l"], i["h"], 96, i["V"], i["s"])
    return papers.step_flops(Setup(config, seq=i["s"], recompute=recompute)) / i["s"] * i["B_times_s"]


def all_reduce_total(algorithm: str) -> float:
    p, n = 4, 400
    return sum(predict.all_reduce(n, p, algorithm, rank).bytes for rank in range(p)) / n


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
CARDS = {
    "a100": hardware.A100_80GB, "h100_sxm": hardware.H100_80GB, "v100": hardware.V100_32GB,
}  # fmt: skip

Computed = dict[str, Callable[[], float | list[float]]]
PARAMETERS: Computed = {
    **{f"{name}_params": lambda row=row: predict.parameters(row) for name, row in ZOO.items()},
    **{f"gpt3_{name}_params_M": lambda row=row: predict.parameters(row) / 1e6 for name, row in GPT3.items()},
    **{
        name: lambda row=row: predict.parameters(megatron(row)) / 1e9
        for name, row in ROWS.items()
        if name.startswith("narayanan_t1_")
    },
    "gpt2_small_nobias_params": lambda: predict.parameters(NANOGPT),
    "scalingbook_llama70b": lambda: predict.parameters(zoo.LLAMA3_70B),
}
OPERATIONS: Computed = {
    **{
        f"gpt3_{name}_flops": lambda i=ROWS[f"gpt3_{name}_flops"]["inputs"]: predict.training_flops(
            i["N_million"] * 1e6, i["tokens"]
        )
        for name in GPT3
        if f"gpt3_{name}_flops" in ROWS
    },
    **{
        f"gpt3_{name}_pfdays": lambda i=ROWS[f"gpt3_{name}_pfdays"]["inputs"]: Flops(i["flops"]).to("PF-day")
        for name in GPT3
        if f"gpt3_{name}_pfdays" in ROWS
    },
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
    **{name: lambda row=ROWS[name]: mfu_percent(row) for name in ROWS if name.endswith("_mfu") and "korth" in name},
}
MEMORY: Computed = {
    "kv_llama2_7b_fp16": lambda: predict.kv_cache(zoo.LLAMA2_7B, 1, 1),
    "kv_llama3_8b_bf16": lambda: predict.kv_cache(zoo.LLAMA3_8B, 1, 1),
    "kv_llama_70b_bf16": lambda: predict.kv_cache(zoo.LLAMA3_70B, 1, 1),
    "kv_llama_70b_int8": lambda: predict.kv_cache(zoo.LLAMA3_70B, 1, 1, bytes_per_element=1),
    "kv_gpt3_175b_fp16": lambda: predict.kv_cache(zoo.GPT3_175B, 1, 1),
    "kv_gpt2_small_fp16": lambda: predict.kv_cache(zoo.GPT2_SMALL, 1, 1),
    "kv_llama3_8b_1024": lambda: [predict.kv_cache(zoo.LLAMA3_8B, batch, 1024) for batch in (1, 128)],
    "kv_scalingbook_q": lambda: predict.kv_cache(GPTConfig(64, 4096, 16, 32_000, 8192), 1, 1, bytes_per_element=1),
    "kv_l3_70b_bs32_8192_int8": lambda: predict.kv_cache(zoo.LLAMA3_70B, 32, 8192, bytes_per_element=1),
    "neox_40GB": lambda: Bytes(2 * predict.parameters(zoo.NEOX_20B)).to("GB"),
    "gpu_mem_1b_fp16": lambda: predict.model_states(Setup(1e9, precision="mixed")).parameters.to("GiB"),
    "gpu_mem_175b_fp16": lambda: predict.model_states(Setup(175e9, precision="mixed")).parameters.to("GiB"),
}
TRAFFIC: Computed = {
    "nccl_busbw_all_reduce_n8": lambda: predict.all_reduce(8000, 8).bytes / 8000,
    "nccl_busbw_reduce_scatter_n8": lambda: predict.reduce_scatter(8000, 8).bytes / 8000,
    "nccl_busbw_all_gather_n8": lambda: predict.all_gather(8000, 8).bytes / 8000,
    "nccl_busbw_alltoall_n8": lambda: predict.all_to_all(8000, 8).bytes / 8000,
    "ring_allreduce_per_rank": lambda: predict.all_reduce(10**9, 8).bytes,
    "manager_total": lambda: [all_reduce_total(algorithm) for algorithm in ("direct", "manager", "ring")],
}
HARDWARE: Computed = {
    **{
        f"hw_{card}_{number_format}": lambda gpu=gpu, f=number_format: gpu.peak(f) / 1e12
        for card, gpu in CARDS.items()
        for number_format in gpu.dense_flops_per_s
        if f"hw_{card}_{number_format}" in ROWS
    },
    **{
        f"hw_sparse_{card}_{number_format}": lambda gpu=gpu, f=number_format: gpu.peak(f, sparse=True) / 1e12
        for card, gpu in CARDS.items()
        for number_format in gpu.dense_flops_per_s
        if f"hw_sparse_{card}_{number_format}" in ROWS
    },
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


def test_every_row_is_recomputed() -> None:
    assert set(COMPUTED) == set(ROWS) - WRONG_IN_PRINT


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    assert COMPUTED[name]() == within(ROWS[name])


def test_a_misprint_is_not_reproduced() -> None:
    """GPT-3's Table 2.1 prints a width of 5140 for 13B. Its own Table D.1 rules that out."""
    table_d1 = ROWS["gpt3_13b_params_M"]["value"] * 1e6
    misprint = replace(zoo.GPT3_13B.config, width=5140, heads=10)
    assert predict.parameters(misprint) / 1e6 == within(ROWS["gpt3_13b_5140_wrong"])
    assert predict.parameters(misprint) != pytest.approx(table_d1, rel=0.006)
    assert predict.parameters(zoo.GPT3_13B) == pytest.approx(table_d1, rel=0.0005)

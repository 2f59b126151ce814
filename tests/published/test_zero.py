"""What papers and libraries print about ZeRO, ZeRO-Offload, ZeRO-Infinity; stage 0 of a figure is in `memory.json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.predict import Setup
from tests.predict.papers import kept_on_device

from .rows import figures, rows_of

READS = ("lessons/src/10_*.py",)
ROWS = rows_of(__file__)


def states(params: float, Nd: int, stage: Any, K: int) -> float:
    """Of AdamW under 16-bit weights, whose fp32 copy and moments are the paper's K = 12."""
    setup = Setup(params, Nd, precision="mixed", data=Nd, zero=stage)
    assert predict.model_states(setup.with_(zero=0)).optimizer == K * params
    return predict.model_states(setup).total.to("GB")


def largest(card: float, Nd: int, K: int) -> list[float]:
    """Billions of parameters whose states alone fill a card, for each stage."""
    return [card / 1e9 / states(1e9, Nd, stage, K) for stage in range(4)]


def sent_elements(ranks: int, stages: list[int]) -> list[float]:
    """In units of the number of parameters."""
    setup = Setup(1e9, ranks, precision="mixed", data=ranks)
    traffic = [predict.data_traffic(setup.with_(zero=stage)) for stage in stages]
    return [sum(each.bytes for each in sent.values()) / 2e9 for sent in traffic]


def partitioned_activations(tensor: int, sequences: int, tokens: int) -> float:
    """The all-gather of a block's cut-up input, beside what tensor parallelism sends with recompute."""
    setup = Setup(zoo.GPT3_175B, sequences, tokens, precision="mixed", tensor=tensor, recompute="full")
    sent = predict.rank_traffic(setup, range(5, 6))["tensor"].total_bytes
    return predict.all_gather(predict.block_input(setup), tensor).bytes / sent


def neox(tensor: int, pipeline: int, data: int, micro_batch: int, accumulation: int, zero: Any) -> Setup:
    return Setup(
        zoo.NEOX_20B, data * micro_batch * accumulation, precision="mixed", micro_batch=micro_batch, tensor=tensor,
        pipeline=pipeline, data=data, zero=zero,
    )  # fmt: skip


def neox_run(**inputs: Any) -> list[int]:
    setup = neox(**inputs)
    return [setup.world_size, setup.batch_size * setup.seq]


def deepspeed_2(params: float, gpus: int) -> float:
    """As documented: gradients count twice, whole in 16 bits, and their part in fp32."""
    setup = Setup(params, gpus, precision="mixed", data=gpus, zero=2)
    wide = predict.model_states(setup.with_(gradients="fp32"))
    return (wide.total + predict.model_states(setup.with_(zero=1)).gradients).to("GiB")


def deepspeed_2_code(params: float, gpus: int) -> list[float]:
    """As its code counts today: gradients count twice, both in parts. What no rank shares, and what N share."""
    setup = Setup(params, precision="mixed", data=gpus, zero=2)
    states, narrow = predict.model_states(setup.with_(gradients="fp32")), predict.model_states(setup).gradients
    return [states.parameters / params, (states.optimizer + states.gradients + narrow) * gpus / params]


def deepspeed_3(params: float, largest: float, gpus: int) -> float:
    """Gradients in fp32, and one layer's weights and gradients in 16 bits."""
    setup = Setup(params, gpus, precision="mixed", gradients="fp32", data=gpus, zero=3)
    layer = predict.model_states(Setup(largest, precision="mixed", optimizer=None))
    return (predict.model_states(setup).total + layer.parameters + layer.gradients).to("GiB")


def bytes_a_parameter(away: list[str]) -> list[float]:
    setup = Setup(1e9, 1, precision="mixed")
    kept = kept_on_device(setup, set(away))
    return [kept / 1e9, kept_on_device(setup, set()) / kept]


def largest_model(params: float) -> float:
    return kept_on_device(Setup(params, 1, precision="mixed"), {"gradients", "optimizer"}).to("GB")


def efficiency(bytes_per_s: float, flops_per_s: float, **state: Any) -> float:
    return predict.link_efficiency(predict.flops_a_byte(**state), bytes_per_s, flops_per_s)


def bandwidth(efficiency: float, flops_per_s: float, **state: Any) -> float:
    return predict.bandwidth_for(efficiency, predict.flops_a_byte(**state), flops_per_s)


ELSEWHERE: dict[str, Callable[..., Any]] = {
    "zero_offload_t1": bytes_a_parameter,
    "zero_offload_13b": largest_model,
    "zero_infinity_efficiency": efficiency,
    "zero_infinity_bandwidth": bandwidth,
}
COMPUTED: dict[str, Callable[..., Any]] = {
    **{name: formula for name in ROWS for prefix, formula in ELSEWHERE.items() if name.startswith(prefix)},
    **{name: states for name in ROWS if name.startswith(("zero_fig1", "zero_table1"))},
    "zero_table2_64_gpus": largest,
    **{name: sent_elements for name in ROWS if name.startswith("zero_comm")},
    "zero_pa_comm": partitioned_activations,
    "mtnlg_gpus": lambda data, **cut: [
        Setup(zoo.MT_NLG_530B, count, data=count, **cut).world_size for count in data
    ],
    "neox_20b_gpus": neox_run,
    "deepspeed_zero2_t5_3b": deepspeed_2,
    "deepspeed_zero2_code": deepspeed_2_code,
    "deepspeed_zero3_t5_3b": deepspeed_3,
    "deepspeed_zero3_t5_large": lambda **inputs: 1024 * deepspeed_3(**inputs),
}  # fmt: skip


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)


def test_what_was_measured_lies_below_the_formula_and_in_the_lesson() -> None:
    row = ROWS["zero_table2_64_gpus"]
    assert all(ran < most for ran, most in zip(row["measured"], largest(**row["inputs"])))
    page = (Path(__file__).parents[2] / "lessons/src/10_zero.py").read_text("utf-8")
    assert all(f"{ran}e9" in page for ran in row["measured"])


def test_stage_1_is_what_lets_neox_fit() -> None:
    """Without it, the model states alone would leave less than 3 GiB of 40, on the first stage less than 1."""
    setup, memory = neox(**ROWS["neox_20b_gpus"]["inputs"]), hardware.A100_40GB.memory
    left = {
        (zero, stage): (memory - predict.model_states(setup.with_(zero=zero), stage).total).to("GiB")
        for zero in (0, 1)
        for stage in (0, 1)
    }
    assert 0 < left[0, 0] < 1 < left[0, 1] < 3
    assert 27 < left[1, 0] < left[1, 1]

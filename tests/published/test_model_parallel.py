"""What papers print about splitting a model, computed again by this library: who sends, idles and holds how much.

Activations per rank, with Korthikanti et al.'s Table 2, are
with what recompute saves of them: `recompute.json`.
"""

from collections.abc import Callable
from typing import Any

from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup

from .rows import figures, rows_of

ROWS = rows_of(__file__)
BY_WIDTH = {row.config.width: row for row in (zoo.GPT3_175B, zoo.MT_NLG_530B)}


def pipeline(p: int, m: int) -> Setup:
    """p stages of MT-NLG, m micro-batches of one sequence."""
    return Setup(zoo.MT_NLG_530B, m, precision="mixed", micro_batch=1, pipeline=p, tensor=8)


def block_sends(b: int, s: int, h: int, t: int) -> float:
    """Elements that one block sends in 16 bits."""
    setup = Setup(zoo.GPT3_175B, b, s, precision="mixed", tensor=t)
    assert setup.gpt.width == h
    return predict.rank_traffic(setup, range(5, 6))["tensor"].total_bytes / setup.weight_bytes


def table_3(h: int, global_batch: int, s: int, micro_batch: int, TP: int, PP: int) -> list[int]:
    setup = Setup(BY_WIDTH[h], global_batch, s, micro_batch, tensor=TP, pipeline=PP)
    config = setup.gpt
    return [config.heads, config.width, config.layers, TP, PP, setup.world_size, setup.rows_per_pass]


def outputs_gib(s: int, b: int, h: int, p: int) -> float:
    """A stage's results, one for each micro-batch in flight on the first stage."""
    setup = pipeline(p, m := 8 * p).with_(batch_size=b * m, micro_batch=b, seq=s)
    assert setup.gpt.width == h
    return predict.in_flight(setup) * predict.block_input(setup).to("GiB")


def llama(TP: int, CP: int, PP: int, DP: int, seq: int, bs_per_dp: int, **_: Any) -> Setup:
    return Setup(zoo.LLAMA3_405B, DP * bs_per_dp, seq, tensor=TP, context=CP, pipeline=PP, data=DP)


def long_context() -> float:
    setup = llama(**ROWS["llama3_t4_128k_16384"]["inputs"])
    return setup.batch_size * setup.seq


def gpipe_speedup(M: int, printed: list[float]) -> list[float]:
    """From 2 to 8 accelerators: as printed, and with nothing lost but the bubble."""
    two, eight = (K * (1 - predict.bubble(pipeline(K, M), "gpipe").over_all) for K in (2, 8))
    return [printed[2] / printed[0], eight / two]


def idle_units(schedule: str, p: int) -> float:
    """Idle time of one rank, where F, B and W take one unit each."""
    setup = pipeline(p, 8)
    return predict.bubble(setup, schedule).over_ideal * 3 * setup.micro_batches


COMPUTED: dict[str, Callable[..., Any]] = {
    "megatron_tp_comm": block_sends,
    "korth_table3_175b": table_3,
    "korth_table3_530b": table_3,
    "korth_appB_530b": outputs_gib,
    "selene": lambda tensor, pipeline: Setup(zoo.MT_NLG_530B, tensor=tensor, pipeline=pipeline).world_size,
    "llama3_t4_8k_8192": lambda **inputs: llama(**inputs).world_size,
    "llama3_t4_128k_16384": lambda **inputs: llama(**inputs).world_size,
    "llama3_t4_128k_16384_tok": long_context,
    **{name: lambda p, m: predict.bubble(pipeline(p, m)).over_all for name in ROWS if name.startswith("bubble_fr")},
    **{name: lambda p, m: predict.bubble(pipeline(p, m)).over_ideal for name in ROWS if name.startswith("bubble_ov")},
    "bubble_interleaved": lambda p, m, v: predict.bubble(pipeline(p, m), "interleaved", v).over_ideal,
    "gpipe_negligible": lambda K, M: predict.bubble(pipeline(K, M), "gpipe").over_all,
    "gpipe_ideal_speedup_K8_vs_K2_M32": gpipe_speedup,
    "inflight_1f1b": lambda p, m: [
        [predict.in_flight(pipeline(p, m), rank, name) for rank in range(p)] for name in ("1f1b", "gpipe")
    ],
    "zb_1f1b": lambda p: idle_units("1f1b", p),
    "zb_zb-h1": lambda p: idle_units("zero-bubble", p),
    "pipedream_noam": lambda workers, replicas_input: predict.in_flight(pipeline(workers // replicas_input, 64)),
}


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)


def test_eight_gpus_hold_an_eighth_of_a_stage() -> None:
    """MT-NLG on 8 × 35: 1.9 billion parameters a GPU in the middle of the pipeline, the end ones a table more."""
    setup = pipeline(35, 280)
    held = [predict.rank_parameters(setup, stage) for stage in range(35)]
    assert len(set(held[1:-1])) == 1 and held[0] > held[1] < held[-1]
    whole = 105 * 6 * 20480 + 2 * 20480  # on all 8 ranks: norms, and the biases of rows
    assert 8 * sum(held) == predict.parameters(zoo.MT_NLG_530B) + 7 * whole + 51_200 * 20480  # and the head's copy

"""The planner: its memory is the account's, its plans are legal, what it refuses it explains, and it is quick."""

import json
import time
from typing import Any

import numpy as np
import pytest

from course_lib.model import hardware, zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup, model_states, rank_memory, rank_traffic, unit_buffers
from course_lib.predict.planner import ACCOUNT, Cluster, Constants, Plans, constants_for, fitted, plan
from course_lib.predict.planner.cost import memory, seconds
from course_lib.predict.planner.plan import legal
from course_lib.predict.planner.work import Layouts, even_blocks, work
from tests.predict.refused import refused

H100 = hardware.H100_80GB
SMALL = GPTConfig(layers=8, width=64, heads=4, vocab_size=256, context=64)
TIED_LLAMA = zoo.Architecture(8, 64, 4, 4, 192, 256, 64, gated=True, positions="rotary", tied=True)
PLAIN = Constants(
    gemm_efficiency=0.5, attention_efficiency=0.5, half_width=0, launch_s=0, launch_tensor_s=0,
    link_bytes_per_s=400e9, nic_bytes_per_s=50e9, hidden=0, fixed_s=0, **ACCOUNT,
)  # fmt: skip
"""Half the peak, nothing lost, and the account's memory."""


def layouts(*rows: tuple[int, ...]) -> Layouts:
    return Layouts(*np.array(rows, int).T)


def with_(**other: float) -> Constants:
    return Constants(**{**vars(PLAIN), **other})


#              tp pp dp cp ep zero mbs v full batch
CASES = [
    (1, 1, 1, 1, 1, 0, 2, 1, 0, 8),
    (2, 1, 4, 1, 1, 0, 2, 1, 0, 16),
    (1, 4, 2, 1, 1, 1, 1, 1, 0, 16),
    (2, 2, 2, 1, 1, 2, 2, 1, 1, 32),
    (4, 2, 4, 1, 1, 3, 1, 4, 0, 32),
    (1, 2, 1, 2, 1, 0, 1, 1, 0, 4),
    *((1, p, 1, 1, 1, 0, 1, 8 // p, full, p * times) for p in (2, 4) for times in (1, 2, 5) for full in (0, 1)),
    (2, 4, 1, 2, 1, 0, 1, 2, 0, 16),
]


@pytest.mark.parametrize("config", [SMALL, TIED_LLAMA, zoo.LLAMA3_8B.config], ids=["gpt", "tied", "llama3-8b"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_of_every_stage_is_the_account(config: GPTConfig | zoo.Architecture, case: tuple[int, ...]) -> None:
    t, p, d, c, e, zero, rows, chunks, full, batch = case
    setup = Setup(
        config, batch, micro_batch=rows, precision="mixed", gradients="fp32", tensor=t, pipeline=p, data=d, context=c,
        expert=e, zero=zero, sequence_parallel=t > 1, recompute="full" if full else "none",  # type: ignore[arg-type]
    )  # fmt: skip
    amounts = work(config, setup.seq, layouts(case))
    planned = (memory(amounts, PLAIN) - amounts.passing)[0]
    for number, stage in enumerate((0, min(1, p - 1), p - 1)):
        account = rank_memory(setup, stage, "interleaved" if chunks > 1 else "1f1b", chunks).total
        assert planned[number] == pytest.approx(account, abs=4), f"stage {stage}"


MIXTRAL = zoo.MIXTRAL_8X7B


@pytest.mark.parametrize("config", [SMALL, TIED_LLAMA, zoo.MIXTRAL_8X7B], ids=["gpt", "tied", "mixtral"])
@pytest.mark.parametrize("case", [(1, 1, 8), (2, 1, 4), (1, 4, 2), (2, 2, 2)], ids=str)
def test_zero_3_gathers_units(config: GPTConfig | zoo.Architecture | zoo.ExpertModel, case: tuple[int, ...]) -> None:
    """The weights of `unit_buffers`: gradients are whole one after the other, while activations go."""
    t, p, d = case
    setup = Setup(config, d * p, 64, precision="mixed", tensor=t, pipeline=p, data=d, zero=3)
    three, one = (layouts((t, p, d, 1, 1, zero, 1, 1, 0, d * p)) for zero in (3, 1))
    passing = (work(config, 64, three).passing - work(config, 64, one).passing)[0]
    for number, stage in enumerate((0, min(1, p - 1), p - 1)):
        assert passing[number] == unit_buffers(setup, stage=stage).parameters


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("config", "data", "context", "expert"),
    [(SMALL, 4, 1, 1), (SMALL, 1, 4, 1), (SMALL, 2, 2, 1), (MIXTRAL, 4, 1, 8), (MIXTRAL, 1, 2, 8), (MIXTRAL, 2, 4, 2)],
    ids=lambda each: getattr(each, "name", None),
)
def test_states_and_their_traffic_are_the_account(
    config: GPTConfig | zoo.ExpertModel, data: int, context: int, expert: int, zero: int, m: int
) -> None:
    """With several micro-batches, with experts at every stage of ZeRO, and with ZeRO over context ranks."""
    case = (1, 1, data, context, expert, zero, 1, 1, 0, m * data * expert)
    setup = Setup(config, case[-1], 64, micro_batch=1, precision="mixed", gradients="fp32").with_(
        data=data, context=context, expert=expert, zero=zero
    )
    amounts = work(config, 64, layouts(case))
    assert amounts.states[0, 0] == pytest.approx(model_states(setup).total, abs=3)
    if not zero:  # the planner sums once over context ranks, as over more data ranks; `ContextParallelGPT` in each pass
        sent = rank_traffic(setup)
        each_pass = 2 * (model_states(setup).gradients + 4) * (context - 1) / context  # 4: the loss
        summed = sent["context"].modelled_bytes["all_reduce"] if context > 1 else 0
        assert summed == pytest.approx(m * each_pass, abs=m)
        setup = setup.with_(data=data * context, context=1, batch_size=case[-1] * context)
    sent = rank_traffic(setup)["data"].total_bytes
    assert amounts.data_bytes[0] == pytest.approx(sent, abs=4 * m)


def test_more_context_ranks_sum_as_more_data_ranks() -> None:
    rows = [(1, 1, d, c, 1, zero, 1, 1, 0, 32) for zero in range(4) for d, c in ((4, 8), (32, 1))]
    both = work(zoo.LLAMA3_8B.config, 32_768, layouts(*rows)).data_bytes.reshape(4, 2)
    factors = np.array([1, 1, (4 * 8 + 2) / (4 + 2), 8])  # d = 4 has 8 micro-batches for each one of d = 32
    assert both[:, 0] == pytest.approx(factors * both[:, 1])


def test_the_ring_of_gradients_goes_round_context_ranks() -> None:
    rows = layouts((1, 1, 2, 8, 1, 0, 1, 1, 0, 2), (4, 1, 2, 8, 1, 0, 1, 1, 0, 2), (1, 1, 1, 8, 1, 0, 1, 1, 0, 1))
    amounts = work(zoo.LLAMA3_8B.config, 32_768, rows)
    slow, late = (with_(nic_bytes_per_s=40e9, message_s=wait) for wait in (0.0, 1e-3))
    sent = seconds(amounts, slow, 1e15)["data"]
    assert amounts.data_bytes / sent == pytest.approx([8 * 40e9, 2 * 40e9, 400e9])  # 8 and 2 members in a node
    assert seconds(amounts, late, 1e15)["data"] - sent == pytest.approx([15e-3, 15e-3, 0])


@pytest.mark.parametrize("full", [0, 1])
def test_keys_and_values_go_round_the_ring_as_rank_traffic_counts(full: int) -> None:
    rows = layouts((1, 1, 1, 4, 1, 0, 2, 1, full, 2), (1, 1, 1, 1, 1, 0, 2, 1, full, 2))
    setup = Setup(SMALL, 2, precision="mixed", context=4, recompute="full" if full else "none")
    sent = rank_traffic(setup, range(3, 4))["context"].modelled_bytes["send"]
    assert work(SMALL, 64, rows).context_bytes.tolist() == [sent, 0]  # one rank has no ring


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize(
    ("model", "expert"), [(zoo.MIXTRAL_8X7B, 8), (zoo.DEEPSEEK_V3, 8), (zoo.LLAMA3_8B, 1), (SMALL, 1)]
)
def test_blocks_send_what_rank_traffic_counts(model: Any, expert: int, full: int) -> None:
    """A dense block sends two sums of the stream a pass, one more of each where it runs again."""
    setup = Setup(model, 8, precision="mixed", micro_batch=8 // expert, tensor=4, pipeline=2, expert=expert)
    setup = setup.with_(recompute="full" if full else "none", seq=min(setup.seq, 4096))
    amounts = work(setup.config, setup.seq, layouts((4, 2, 1, 1, expert, 0, 8 // expert, 1, full, 8)))  # type: ignore[arg-type]
    sent = rank_traffic(setup, range(1, setup.shape.layers + 1))
    assert amounts.tensor_bytes[0] == pytest.approx(sent["tensor"].total_bytes / setup.shape.layers, rel=1e-9)
    parts = 4 if expert == 1 else 1  # dense, the planner's stream lies cut over tensor ranks between blocks
    assert amounts.pipeline_bytes[0] == sent["pipeline"].total_bytes / parts
    stream = 2 * 8 * setup.seq * setup.shape.width
    assert expert > 1 or amounts.tensor_bytes[0] == (4 + 2 * full) * 2 * 3 / 4 * stream


def test_scores_are_as_wide_as_the_heads() -> None:
    one = layouts((1, 1, 1, 1, 1, 0, 1, 1, 0, 1))
    scores = {each.name: work(each, 4096, one).scores[0] for each in (zoo.MIXTRAL_8X7B, zoo.DEEPSEEK_V3)}
    wide = {"Mixtral 8x7B": 2 * 32 * 128, "DeepSeek-V3": 128 * (128 + 64 + 128)}  # of queries, and of values
    assert scores == {name: 3 * 2 * 4096 * 4096 * features for name, features in wide.items()}
    assert work(zoo.LLAMA3_8B.config, 4096, one).scores[0] == 3 * 4 * 4096 * 4096 * 4096


def test_a_pipeline_of_equal_stages_has_the_papers_bubble() -> None:
    config = GPTConfig(layers=8, width=4096, heads=32, vocab_size=8, context=2048)
    rows = [(1, 4, 1, 1, 1, 0, 1, v, 0, 16) for v in (1, 2)]
    fast = with_(link_bytes_per_s=1e30, nic_bytes_per_s=1e30)
    price = seconds(work(config, 2048, layouts(*rows)), fast, 1e15)
    assert price["bubble"] / price["work"] == pytest.approx([3 / 16, 3 / 32], rel=1e-3)


def test_half_the_peak_takes_twice_the_flops_over_the_peak() -> None:
    config = GPTConfig(layers=2, width=4096, heads=32, vocab_size=8, context=1024)
    one = layouts((1, 1, 1, 1, 1, 0, 1, 1, 0, 1))
    flops = 2 * 12 * 4096**2 * 6 * 1024 + 2 * 12 * 1024 * 1024 * 4096
    assert seconds(work(config, 1024, one), PLAIN, 1e15)["step"][0] == pytest.approx(2 * flops / 1e15, rel=5e-3)


def test_a_block_takes_no_less_than_its_launches() -> None:
    slow = with_(launch_tensor_s=0.01)
    rows = layouts((4, 1, 1, 1, 1, 0, 1, 1, 0, 8), (4, 1, 1, 1, 1, 0, 8, 1, 0, 8))
    step = seconds(work(SMALL, 64, rows), slow, 1e15)["step"]
    assert step == pytest.approx([8 * 8 * 0.01, 8 * 0.01], rel=0.01)


def test_what_lies_between_products_crosses_memory_again_and_again() -> None:
    rows = layouts((2, 2, 1, 1, 1, 0, 2, 1, 0, 8), (2, 2, 1, 1, 1, 0, 2, 1, 1, 8))
    amounts = work(zoo.LLAMA3_8B.config, 4096, rows)
    plain, slow = (seconds(amounts, with_(crossings=times, hbm_bytes_per_s=1e12), 1e15)["block"] for times in (0, 3))
    assert amounts.kept[0, 0] / 2 / 16 == pytest.approx(amounts.block_bytes[0], rel=0.02)  # 2 micro-batches, 16 blocks
    assert slow - plain == pytest.approx(3 * amounts.block_bytes / 1e12)
    assert amounts.block_bytes[0] == amounts.block_bytes[1]  # recompute keeps less and runs through no less


def test_the_head_may_have_more_bits_than_blocks_and_messages_may_leave_behind_products() -> None:
    amounts = work(zoo.LLAMA3_8B.config, 4096, layouts((2, 1, 1, 1, 1, 0, 1, 1, 0, 8), (2, 4, 1, 1, 1, 0, 1, 1, 0, 8)))
    plain, slow, hidden = (
        seconds(amounts, with_(**other), 1e15) for other in ({}, {"head_efficiency": 0.25}, {"overlapped": 1.0})
    )
    assert slow["step"][0] - plain["step"][0] == pytest.approx(8 * amounts.head[0] * (1 / 0.25 - 1 / 0.5) / 1e15)
    sent = amounts.tensor_bytes / 400e9
    assert plain["block"] - hidden["block"] == pytest.approx(sent)
    blocks = np.array([8 * 32, 11 * 8])  # of 8 micro-batches; of 8 and the bubble's 3, on the slowest of 4 stages
    pipe = np.array([0, 11 * amounts.pipeline_bytes[1] / 400e9])
    assert plain["step"] - hidden["step"] == pytest.approx(blocks * sent + pipe, rel=1e-6)


def test_a_ring_over_nodes_uses_a_card_for_each_of_its_members_in_a_node() -> None:
    rows = [(1, 1, 8, 1, 1, 0, 1, 1, 0, 8), (1, 1, 16, 1, 1, 0, 1, 1, 0, 16), (2, 1, 8, 1, 1, 0, 1, 1, 0, 16)]
    rows += [(8, 1, 2, 1, 1, 0, 1, 1, 0, 16)]
    amounts = work(zoo.LLAMA3_8B.config, 8192, layouts(*rows))
    slow = with_(nic_bytes_per_s=40e9)
    rates = amounts.data_bytes / seconds(amounts, slow, 1e15)["data"]
    assert rates == pytest.approx([400e9, 8 * 40e9, 4 * 40e9, 40e9])  # inside a node; 8, 4 and 1 members in each


def test_zero_3_waits_for_its_gathers_one_after_the_other() -> None:
    rows = layouts(*((1, 1, 16, 1, 1, zero, 1, 1, 0, 32) for zero in (0, 3)))
    amounts = work(zoo.LLAMA3_8B.config, 8192, rows)
    late = [seconds(amounts, with_(message_s=wait), 1e15)["data"] for wait in (0.0, 1e-3)]
    assert late[1] - late[0] == pytest.approx([15e-3, 15e-3 * 3 * 2 * 32])  # 2 micro-batches, 32 blocks, 3 times


@pytest.mark.parametrize(("layers", "stages", "blocks"), [(8, 4, (2, 2, 2)), (126, 16, (7, 8, 7)), (31, 8, (4, 4, 3))])
def test_blocks_that_are_too_few_are_missing_at_the_ends(layers: int, stages: int, blocks: tuple[int, ...]) -> None:
    first, most, last = even_blocks(layers, np.array([stages]))[0]
    assert (first, most, last) == blocks
    assert first + (stages - 2) * most + last == layers


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_every_layout_uses_every_gpu_and_divides() -> None:
    cluster, config = Cluster(H100, 64), zoo.LLAMA3_8B.config
    each, _ = legal(config, cluster, 128, 8192, contexts=True)
    assert len(each.batch) > 500
    assert (each.tensor * each.pipeline * each.data * each.context * each.expert == 64).all()
    assert (each.batch == each.data * each.expert * each.micro_batch * each.micro_batches).all()
    assert (config.heads % each.tensor == 0).all() and (each.tensor <= 8).all()
    interleaved = each.chunks > 1
    assert (config.layers % (each.pipeline * each.chunks) == 0)[interleaved].all()
    assert (each.micro_batches % each.pipeline == 0)[interleaved].all()
    assert {int(n) for n in each.zero} == {0, 1, 2, 3} and {int(n) for n in each.full} == {0, 1}


def test_experts_are_cut_over_their_own_axis() -> None:
    found = plan(zoo.MIXTRAL_8X7B, Cluster(H100, 128), batch=256, seq=4096).best
    assert {each.expert for each in found} - {1} and all(8 % each.expert == 0 for each in found)


def test_plans_are_sorted_and_fit() -> None:
    cluster = Cluster(H100, 64)
    plans = plan(zoo.LLAMA3_8B, cluster, batch=128)
    assert [each.step_s for each in plans.best] == sorted(each.step_s for each in plans.best)
    room = constants_for(H100).fillable * H100.usable / 1e9
    assert all(max(each.first_gb, each.middle_gb, each.last_gb) <= room for each in plans.best)


def test_the_map_has_the_fastest_of_each_mesh_also_of_those_that_are_not_among_the_best() -> None:
    few, all_ = (plan(zoo.LLAMA3_8B, Cluster(H100, 64), batch=128, keep=keep) for keep in (1, 10**6))
    assert few.best == all_.best[:1] and few.map == all_.map
    fastest = {}
    for each in all_.best:
        fastest.setdefault((each.tensor, each.pipeline), each)
    assert {(each.tensor, each.pipeline): each for each in few.map} == fastest and len(few.map) == len(fastest) > 5


def test_micro_batches_need_not_be_powers_of_two() -> None:
    sizes = {each.micro_batch for each in plan(zoo.LLAMA3_8B, Cluster(H100, 8), batch=24, keep=10**6).best}
    assert sizes >= {1, 2, 3, 4, 6}


def test_refusals_say_why() -> None:
    plans = plan(zoo.LLAMA3_70B, Cluster(H100, 64), batch=64)
    reasons = "\n".join(plans.refused)
    for words in (
        "can be filled of a H100",
        "stages",
        "interleaving needs a pipeline",
        "ZeRO needs several data ranks",
    ):
        assert words in reasons
    assert "does not split into data" in "\n".join(plan(zoo.LLAMA3_8B, Cluster(H100, 64), batch=8).refused)


def test_heads_that_do_not_split_are_refused() -> None:
    plans = plan(zoo.GPT2_XL, Cluster(H100, 8), batch=64)  # 25 heads
    assert all(each.tensor == 1 for each in plans.best)
    assert "heads=25 does not split into tensor=2 equal parts" in plans.refused


def test_the_least_memory_is_told_only_where_nothing_fits() -> None:
    refused = "\n".join(plan(zoo.LLAMA3_70B, Cluster(H100, 64), batch=64).refused)
    assert "can be filled" in refused and "the least" not in refused


LEAST = r"no plan on 8 H100[^\n]*\n[^\n]* times: more than the [^\n]*the least is [\d.]+ GB\n(.*\n)*take more GPUs"
EIGHT = Cluster(H100, 8)
test_what_has_no_plan_is_refused_with_what_would_help = refused(
    (lambda: plan(zoo.GPT3_175B, EIGHT, batch=64), LEAST),
    (
        lambda: plan(zoo.GPT3_175B, Cluster(H100, 100_000), batch=2048),
        r"does not split into data=(.|\n)*take another batch, or number of GPUs",
    ),
    (lambda: plan(zoo.LLAMA3_8B, EIGHT, 0, 8192), "must be positive"),
    (lambda: plan(zoo.LLAMA3_8B, EIGHT, 8, -1), "must be an integer, at least 1"),
    (lambda: plan(zoo.LLAMA3_8B, EIGHT, batch=8, seq=0), "seq=0: it must be an integer, at least 1"),
    (
        lambda: plan(zoo.GPT3_175B, Cluster(H100, 1024), batch=1024, seq=4096),
        "^seq=4096 is longer than the model's context of 2048: shorten the sequence",
    ),
    (lambda: plan(zoo.SWITCH_BASE, EIGHT, batch=8), "Switch-Base is an encoder and a decoder"),
    (lambda: Cluster(H100, 12), "gpus=12 do not fill nodes of 8"),
)


def test_json_comes_back() -> None:
    plans = plan(zoo.LLAMA3_8B, Cluster(H100, 16), batch=64)
    assert Plans.of(plans.json()) == plans
    assert json.loads(plans.json())["best"][0]["tensor"] == plans.best[0].tensor


def test_the_command_starts_as_many_processes_as_there_are_gpus() -> None:
    best = plan(zoo.LLAMA3_8B, Cluster(H100, 16), batch=64).best[0]
    told = best.torchrun("go.py")
    assert told.startswith("torchrun --nnodes 2 --nproc-per-node 8 ") and "$HEAD:29500 go.py " in told
    alone = plan(zoo.LLAMA3_8B, Cluster(H100, 8), batch=64).best[0]
    assert alone.torchrun().startswith("torchrun --standalone --nproc-per-node 8 train.py ")
    assert f"go.py --tensor {best.tensor} --pipeline {best.pipeline} --data {best.data} " in best.torchrun("go.py")


def test_recompute_costs_a_third_and_saves_memory() -> None:
    rows = layouts((8, 1, 8, 1, 1, 1, 1, 1, 0, 64), (8, 1, 8, 1, 1, 1, 1, 1, 1, 64))
    amounts = work(zoo.LLAMA3_8B.config, 8192, rows)
    assert amounts.products[1] / amounts.products[0] == pytest.approx(4 / 3)
    plain, again = memory(amounts, PLAIN)[:, 0]
    assert again < plain


def test_gradients_in_16_bits_lie_beside_their_sums() -> None:
    amounts = work(SMALL, 64, layouts((2, 2, 2, 1, 1, 1, 2, 1, 0, 32)))
    more = memory(amounts, with_(gradient_bytes=2.0)) - memory(amounts, PLAIN)
    setup = Setup(SMALL, 32, micro_batch=2, tensor=2, pipeline=2, data=2, precision="mixed", sequence_parallel=True)
    due = [rank_memory(setup, stage, "1f1b", 1).parameters for stage in (0, 1, 1)]
    assert more[0] == pytest.approx(np.array([float(each) for each in due]), rel=1e-9)


def test_no_card_sends_faster_than_its_link() -> None:
    usual = {each["default_for"]: Constants(**each["constants"]) for each in fitted().values()}
    assert constants_for(hardware.A100_80GB) == constants_for(hardware.A100_40GB) == usual["A100"]
    assert constants_for(H100) == constants_for(hardware.H200_141GB) == usual["H100"]
    slow = [constants_for(gpu).link_bytes_per_s for gpu in (hardware.RTX_3090, hardware.RTX_4090, hardware.L4)]
    assert slow == [56.25e9, 32e9, 32e9]


def test_each_machine_has_constants_with_a_meaning() -> None:
    for name, machine in fitted().items():
        constants = Constants(**machine["constants"])
        assert 0.2 < constants.gemm_efficiency < 1, name
        assert 0.5 < constants.kept <= 1.5, name
        assert 10e9 < constants.nic_bytes_per_s < 450e9, name
        assert machine["sources"] and machine["rows"]["time"] > 0
    assert fitted()["H100 nanotron"]["rows"] == {"time": 228, "memory": 1220}


@pytest.mark.timed
@pytest.mark.parametrize(("gpus", "limit_s"), [(4096, 1.0), (98_304, 10.0)])
def test_thousands_of_gpus_are_planned_in_a_moment(gpus: int, limit_s: float) -> None:
    started = time.process_time()
    plans = plan(zoo.GPT3_175B, Cluster(H100, gpus), batch=4 * gpus)
    assert time.process_time() - started < limit_s  # some hundredths of a second where nothing else runs
    assert plans.looked_at > 1000

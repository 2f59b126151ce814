"""FLOPs as predicted, against PyTorch's recompute, hand counts and the papers' own forms; `test_meter` counts them."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict import Setup
from course_lib.predict.flops import forward_flops
from course_lib.predict.setup import Recompute
from tests.predict import papers

BASE = GPTConfig(layers=3, width=24, heads=4, vocab_size=50, context=20)


def test_recomputation_exact_against_pytorchs_counter() -> None:
    """PyTorch's `checkpoint` stops early by default: it leaves out the last multiplication of each block."""
    model, tokens = GPT(BASE), torch.randint(50, (5, 12))
    for block in model.blocks:
        block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)
    counted = []
    for early_stop in (False, True):
        with FlopCounterMode(display=False) as step, set_checkpoint_early_stop(early_stop):
            model(tokens, tokens).backward()
        counted.append(step.get_total_flops())
    assert predict.step_flops(Setup(BASE, 5, 12, recompute="full")) == counted[0]
    last_multiplications = BASE.layers * 2 * 5 * 12 * BASE.mlp_width * BASE.width
    assert counted[0] - counted[1] == last_multiplications


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_papers_form_is_ours(recompute: Recompute) -> None:
    for config, batch_size, seq in (
        (BASE, 3, 20),
        (zoo.GPT3_175B.config, 8, 2048),
        (zoo.MT_NLG_530B.config, 280, 2048),
    ):
        setup = Setup(config, batch_size, seq, recompute=recompute)
        ours = predict.step_flops(setup)
        assert papers.step_flops(setup) == ours
        h, layers, vocab = config.width, config.layers, config.vocab_size
        factor, head = (96, 16) if recompute == "full" else (72, 12)
        printed = factor * batch_size * seq * layers * h**2 * (1 + seq / (6 * h) + vocab / (head * layers * h))
        assert printed == pytest.approx(ours, rel=1e-12)


def test_six_nd_is_close_where_the_context_is_short() -> None:
    config, seq = zoo.GPT3_175B.config, 2048
    exact = predict.step_flops(Setup(config, 1, seq))
    rule = predict.training_flops(predict.parameters(config), seq)
    assert rule == pytest.approx(exact, rel=0.03)
    assert predict.step_flops(Setup(replace(config, context=10 * seq), 1)) > 1.2 * 10 * rule


def test_grouped_queries_and_gates_by_hand() -> None:
    """Llama 3 8B, one token's worth of one layer: q and o are d², k and v are d²/4, three matrices in the MLP."""
    d, ffn, seq = 4096, 14336, 100
    block = 2 * (2 * d * d + 2 * d * d // 4 + 3 * d * ffn) + 4 * seq * d
    assert forward_flops(Setup(zoo.LLAMA3_8B, 1, seq)) == seq * (32 * block + 2 * d * 128_256)


def test_palms_form_counts_what_ours_counts() -> None:
    """6N + 12lHQs with N the matrices alone is exactly the step."""
    config = replace(BASE, bias=False, positions="rotary", norm="rmsnorm")
    matrices = predict.parameters(config) - (2 * config.layers + 1) * config.width
    setup = Setup(config, 5, 12)
    assert 12 * 5 * papers.palms_token_flops(setup, matrices) == predict.step_flops(setup)


def test_unknown_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="relative positions"):
        predict.step_flops(Setup(zoo.GOPHER_280B))


def test_flops_are_those_of_all_ranks_together() -> None:
    plain = Setup(BASE, 8, 12, recompute="full")
    for many in ({"data": 4}, {"tensor": 2}, {"pipeline": 3}, {"context": 2}, {"micro_batch": 2}):
        assert predict.step_flops(plain.with_(**many)) == predict.step_flops(plain)

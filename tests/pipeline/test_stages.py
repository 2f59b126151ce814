"""A GPT in stages: the same numbers as whole, cut where it costs least."""

import itertools

import pytest
import torch

from course_lib.model.gpt import GPT, GPTConfig
from course_lib.pipeline.stages import GPTStage, layer_seconds, partition_layers

CONFIG = GPTConfig(layers=3, width=8, heads=2, vocab_size=11, context=6)
OTHER = GPTConfig(layers=3, width=8, heads=2, vocab_size=11, context=6, tied=False, norm="rmsnorm", positions="rotary")
TOKENS = torch.arange(12).view(2, 6) % 11


@pytest.mark.parametrize("config", [CONFIG, OTHER])
@pytest.mark.parametrize("ends", [(5,), (1, 5), (2, 3, 5), (1, 2, 3, 4, 5)])
def test_stages_in_a_row_are_the_whole_model(config, ends):
    whole = GPT(config, seed=3, dtype=torch.float64)
    stages = [GPTStage(config, range(*each), seed=3, dtype=torch.float64) for each in itertools.pairwise((0, *ends))]
    x = TOKENS
    for stage in stages[:-1]:
        x = stage(x)
        assert x.shape == stage.recv_buffer(TOKENS).shape and x.dtype == stage.recv_buffer(TOKENS).dtype
    assert torch.equal(stages[-1](x), whole(TOKENS))
    assert torch.equal(stages[-1](x, TOKENS), whole(TOKENS, TOKENS))
    named = {name: p for stage in stages for name, p in stage.named_parameters()}
    assert named.keys() == dict(whole.named_parameters()).keys()
    copies = sum(stage.tied_weight is not None for stage in stages)
    assert copies == (2 if config.tied and len(stages) > 1 else 0)
    assert sum(p.numel() for s in stages for p in s.parameters()) == sum(p.numel() for p in whole.parameters()) + (
        copies // 2 * 11 * 8
    )


def test_a_cut_makes_the_dearest_stage_as_cheap_as_possible():
    assert partition_layers([1, 1, 1, 1, 1, 1], 3) == [range(2), range(2, 4), range(4, 6)]
    assert partition_layers([0.1, 1, 1, 1, 1, 2.5], 2) == [range(4), range(4, 6)]
    assert partition_layers([0.1, 1, 1, 1, 1, 2.5], 3)[-1] == range(5, 6)
    generator = torch.Generator().manual_seed(0)
    for n_stages in (1, 2, 3, 4):
        costs = torch.rand(8, generator=generator).tolist()
        ways = [
            max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *ends, 8)))
            for ends in itertools.combinations(range(1, 8), n_stages - 1)
        ]
        found = partition_layers(costs, n_stages)
        assert [layer for layers in found for layer in layers] == list(range(8))
        assert max(sum(costs[layer] for layer in layers) for layers in found) == pytest.approx(min(ways))


def test_costs_are_measured():
    """A head over 50,000 words costs more than two blocks of width 32, and the cut gives it a stage of its own."""
    tokens = torch.arange(64).view(4, 16) % 11  # so that the head takes a dozen times as long as all else
    seconds = layer_seconds(GPTConfig(layers=2, width=32, heads=2, vocab_size=50_000, context=16), tokens)
    assert len(seconds) == 4 and seconds[3] > max(seconds[1:3])
    assert partition_layers(seconds, 2)[-1] == range(3, 4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: GPTStage(CONFIG, range(0)), "give a range within 0 .* to 4"),
        (lambda: GPTStage(CONFIG, range(3, 6)), "give a range within 0 .* to 4"),
        (lambda: partition_layers([1.0, 1.0], 3), "2 layers cannot be cut into 3 stages"),
    ],
)
def test_mistakes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()

"""The small GPT: shapes, what it may see, PyTorch's own layers as witnesses, and weights that belong to their seed."""

import math
from dataclasses import replace
from itertools import product
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.model import zoo
from course_lib.model.gpt import GPT, Attention, Block, GPTConfig, RMSNorm, initialize, rotate
from tests.predict.refused import refused

CONFIG = GPTConfig(layers=2, width=32, heads=4, vocab_size=61, context=24)
VARIANTS = [
    replace(CONFIG, norm=norm, positions=positions, bias=bias, tied=tied)
    for norm, positions, bias, tied in product(
        ("layernorm", "rmsnorm"), ("learned", "rotary"), (True, False), (True, False)
    )
]


def tokens(seed: int = 0, batch: int = 3, seq: int = 16) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, (batch, seq), generator=torch.Generator().manual_seed(seed))


def blocks(model: GPT) -> list[Block]:
    return cast(list[Block], list(model.blocks))


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("config", VARIANTS)
def test_shapes_first_loss_and_gradients_and_the_future_is_hidden(config: GPTConfig) -> None:
    model = GPT(config)
    assert model(tokens()).shape == (3, 16, 61)
    loss = model(tokens(), tokens(1))
    assert loss.item() == pytest.approx(math.log(61), rel=0.02)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    now, changed = tokens(), tokens().clone()
    changed[:, 10] = (changed[:, 10] + 1) % 61
    before, after = model(now), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=0)
    assert not torch.equal(before[:, 10], after[:, 10])


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_explicit_and_fused_attention_are_the_same_sum(positions: str) -> None:
    config = replace(CONFIG, positions=positions)
    losses = []
    for attention in ("explicit", "fused"):
        model = GPT(replace(config, attention=attention), dtype=torch.float64)
        loss = model(tokens(), tokens(1))
        loss.backward()
        losses.append([loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-14)


def test_a_block_is_pytorchs_own_layer() -> None:
    """An independent oracle: `nn.TransformerEncoderLayer` with the same weights and a causal mask."""
    block = Block(CONFIG).double().to_empty(device="cpu")
    initialize(block, CONFIG, seed=1, layer=1)
    theirs = nn.TransformerEncoderLayer(
        32, 4, 128, dropout=0, activation=lambda x: F.gelu(x, approximate="tanh"), batch_first=True, norm_first=True
    ).double()  # fmt: skip
    names = {
        "self_attn.in_proj_": "attention.qkv.", "self_attn.out_proj.": "attention.out.", "linear1.": "mlp.up.",
        "linear2.": "mlp.down.", "norm1.": "attention_norm.", "norm2.": "mlp_norm.",
    }  # fmt: skip
    ours = dict(block.named_parameters())
    state = {their + kind: ours[our + kind] for their, our in names.items() for kind in ("weight", "bias")}
    theirs.load_state_dict(state)
    x = torch.randn(2, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    torch.testing.assert_close(block(x), theirs(x, src_mask=mask), rtol=1e-12, atol=1e-14)


def test_rms_norm_is_pytorchs_own() -> None:
    norm = RMSNorm(32)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 32))
    torch.testing.assert_close(norm(x), F.rms_norm(x, (32,), norm.weight, eps=1e-5))


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q_BHSK, k_BHSK = (rotate(vector.expand(1, 1, 12, 8)) for vector in (q, k))
    scores = (q_BHSK @ k_BHSK.transpose(-2, -1))[0, 0]
    for distance in range(12):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert scores[:, 0].std() > 0.01
    torch.testing.assert_close(q_BHSK.norm(dim=-1), q.norm().expand(1, 1, 12), rtol=1e-6, atol=0)


def test_weights_belong_to_seed_and_layer() -> None:
    model = GPT(CONFIG, seed=3)
    torch.rand(17)  # the process's random state has moved on
    assert same(model, GPT(CONFIG, seed=3))
    assert not same(model, GPT(CONFIG, seed=4))
    assert not torch.equal(blocks(model)[0].mlp.up.weight, blocks(model)[1].mlp.up.weight)

    other = GPT(replace(CONFIG, vocab_size=7, tied=False), seed=3)
    assert same(blocks(model)[1], blocks(other)[1]), "a layer's weights must not depend on its neighbours"

    stage = Block(CONFIG)
    stage.to_empty(device="cpu")
    initialize(stage, CONFIG, seed=3, layer=2)
    assert same(blocks(model)[1], stage), "a stage that holds one layer must start with that layer's weights"


def test_building_a_model_draws_nothing_from_the_process() -> None:
    before = torch.get_rng_state()
    GPT(CONFIG)
    assert torch.equal(before, torch.get_rng_state())


def test_scale_of_the_initial_weights() -> None:
    model = GPT(GPTConfig(layers=8, width=256, heads=4, vocab_size=256, context=64))
    block = blocks(model)[5]
    assert model.position_embedding is not None
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.position_embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    for into_stream in (block.attention.out, block.mlp.down):
        assert into_stream.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert block.mlp.up.bias.abs().max() == 0
    assert torch.equal(block.state_dict()["mlp_norm.weight"], torch.ones(256))


def test_dtype_and_device() -> None:
    wide, narrow = GPT(CONFIG), GPT(CONFIG, dtype=torch.bfloat16)
    for w, n in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(w.bfloat16(), n), "the same numbers, rounded"
    assert narrow(tokens(), tokens(1)).dtype == torch.float32, "16-bit logits, but no 16-bit loss"
    assert GPT(CONFIG, dtype=torch.float64)(tokens(), tokens(1)).dtype == torch.float64

    shapes = GPT(CONFIG, device="meta")
    assert all(p.is_meta for p in shapes.parameters())
    shapes.to_empty(device="cpu")
    shapes.initialize(seed=0)
    assert same(shapes, wide)
    with torch.device("meta"):
        assert all(p.is_meta for p in GPT(CONFIG).parameters())
        here = GPT(CONFIG, device="cpu")  # its values are drawn on the CPU, whatever the default device is
    assert same(here, wide)


def test_tied_head_is_one_matrix() -> None:
    assert "head.weight" not in GPT(CONFIG).state_dict()
    untied = GPT(replace(CONFIG, tied=False))
    assert untied.head is not None
    assert not torch.equal(untied.head.weight, untied.token_embedding.weight)


def test_dropout_acts_in_training_only() -> None:
    for attention in ("explicit", "fused"):
        model = GPT(replace(CONFIG, dropout=0.3, attention=attention))
        assert not torch.equal(model(tokens()), model(tokens()))
        model.eval()
        assert torch.equal(model(tokens()), model(tokens()))


def test_attention_weights_sum_to_one() -> None:
    attention = Attention(CONFIG)
    q, k = torch.randn(2, 1, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(1, 4, 7, 8)
    torch.testing.assert_close(attention.explicit(q, k, ones), ones)


test_what_cannot_be_built_is_refused = refused(
    *(
        (lambda wrong=wrong: replace(CONFIG, **wrong), words)
        for wrong, words in (
            ({"heads": 5}, "does not split"),
            ({"layers": 0}, "layers=0"),
            ({"layers": True}, "layers=True: it must be a positive integer"),
            ({"heads": True}, "heads=True"),
            ({"width": 32.0}, "positive integer"),
            ({"mlp_ratio": None}, "mlp_ratio=None"),
            ({"ffn_width": 0}, "ffn_width=0"),
            ({"ffn_width": True}, "ffn_width=True"),
            ({"dropout": 1.0}, "probability"),
            ({"norm": "batchnorm"}, "'layernorm', 'rmsnorm'"),
            ({"positions": "alibi"}, "'learned', 'rotary'"),
            ({"attention": "flash"}, "'explicit', 'fused'"),
            ({"width": 12, "positions": "rotary"}, "make it even"),
        )
    ),
    *(
        (lambda row=row: GPT(row, device="meta"), "not from .*; for a row of the zoo, give row.config")  # type: ignore[arg-type]
        for row in (zoo.GPT2_SMALL, zoo.LLAMA3_8B.config)
    ),
    (lambda: GPT(CONFIG)(tokens(seq=25)), "25 tokens given.*context is 24"),
)


def test_ffn_width_overrides_the_ratio() -> None:
    assert CONFIG.mlp_width == 128
    assert replace(CONFIG, mlp_ratio=2).mlp_width == 64
    assert blocks(GPT(replace(CONFIG, ffn_width=50)))[0].mlp.up.weight.shape == (50, 32)
    assert replace(replace(CONFIG, width=64), heads=2).mlp_width == 256

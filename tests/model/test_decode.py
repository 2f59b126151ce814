"""Decoding with a cache: the tokens of the model without one, the bytes of the formula, pages that come back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from course_kit import measure
from course_lib import predict
from course_lib.model import decode
from course_lib.model.decode import PagedCache, Pages, ReservedCache, generate, read, speculate
from course_lib.model.gpt import GPT, Attention, GPTConfig
from course_lib.train.recompute import RecomputedLayers, recompute_only
from tests.predict.refused import refused

CONFIG = GPTConfig(layers=2, width=32, heads=4, vocab_size=50, context=64)
ROTARY = GPTConfig(layers=2, width=32, heads=4, vocab_size=50, context=64, positions="rotary")


def lively(config: GPTConfig, seed: int = 0) -> GPT:
    """A model whose next token depends on much: large weights, in fp64."""
    model = GPT(config, seed, dtype=torch.float64)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(8)
    return model


def prompt(batch: int, seq: int) -> Tensor:
    return torch.randint(0, 50, (batch, seq), generator=torch.Generator().manual_seed(1))


def without_cache(model: GPT, tokens: Tensor, new: int) -> Tensor:
    start = tokens.shape[1]
    for _ in range(new):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens[:, start:]


def cache_of(config: GPTConfig, batch: int) -> ReservedCache:
    return ReservedCache(config, batch, dtype=torch.float64)


@pytest.mark.parametrize("config", [CONFIG, ROTARY])
def test_a_cache_changes_no_token(config: GPTConfig) -> None:
    model = lively(config)
    due = without_cache(model, prompt(3, 10), 30)
    assert torch.equal(generate(model, prompt(3, 10), 30, cache_of(config, 3)), due) and due.unique().numel() > 10


def test_a_model_that_recomputes_writes_the_same_text() -> None:
    model = lively(CONFIG)
    due = generate(model, prompt(3, 10), 10, cache_of(CONFIG, 3))
    model.blocks = RecomputedLayers(model.blocks, every=2)
    assert torch.equal(generate(model, prompt(3, 10), 10, cache_of(CONFIG, 3)), due)
    for method in ("forward", "attend"):
        some = recompute_only(lively(CONFIG), Attention, method)
        assert torch.equal(generate(some, prompt(3, 10), 10, cache_of(CONFIG, 3)), due)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [CONFIG, ROTARY])
def test_logits_do_not_depend_on_how_a_text_is_cut(config: GPTConfig) -> None:
    model, tokens, cache = lively(config), prompt(2, 20), cache_of(config, 2)
    parts = torch.cat([read(model, part, cache) for part in tokens.split([7, 1, 1, 5, 6], 1)], 1)
    torch.testing.assert_close(parts, model(tokens), rtol=0, atol=1e-9)


def test_a_cache_holds_the_formula_s_bytes() -> None:
    cache = ReservedCache(CONFIG, 3, 40)
    assert cache.held_bytes == predict.kv_cache(CONFIG, 3, 40, bytes_per_element=4)


test_what_has_no_room_is_refused = refused(
    (lambda: read(GPT(CONFIG), prompt(3, 41), ReservedCache(CONFIG, 3, 40)), "41 tokens for a cache with room for 40"),
    (lambda: read(GPT(CONFIG), prompt(3, 65), ReservedCache(CONFIG, 3, 100)), "the context is 64"),
)


def test_decoding_multiplies_for_one_token_alone() -> None:
    model, cache = GPT(CONFIG), ReservedCache(CONFIG, 1)
    read(model, prompt(1, 31), cache)
    with measure.flops() as counted:
        read(model, prompt(1, 1), cache)
    weights = 2 * 12 * 32 * 32 + 50 * 32
    assert counted.total == 2 * weights + 2 * 2 * 2 * 32 * 32  # and two products with 32 keys in each of two layers


def test_sequences_share_pages_and_give_them_back() -> None:
    model, pages = lively(CONFIG), Pages(CONFIG, pages=10, page_tokens=4)
    pages.numbers = pages.numbers.double()
    caches, texts = [PagedCache(pages), PagedCache(pages)], [prompt(1, 5), prompt(1, 9)]
    first = [read(model, text, cache)[:, -1:].argmax(-1) for text, cache in zip(texts, caches)]
    assert [len(cache.table) for cache in caches] == [2, 3] and len(pages.free) == 5
    for text, cache, token in zip(texts, caches, first):
        rest = generate(model, token, 6, cache)
        assert torch.equal(torch.cat([token, rest], 1), without_cache(model, text, 7))
    assert {*caches[0].table} & {*caches[1].table} == set()
    with pytest.raises(ValueError, match="all pages but 3 are taken, 10 wanted"):
        read(model, prompt(1, 40), PagedCache(pages))
    caches[0].release()
    assert caches[0].table == [] and sorted([*pages.free, *caches[1].table]) == [*range(10)]


@pytest.mark.parametrize("ahead", [1, 3, 5])
def test_speculation_changes_no_token_and_saves_passes(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is the model itself is always right; another one is nearly always wrong."""
    monkeypatch.setattr(decode, "ReservedCache", cache_of_one)
    model, other = lively(CONFIG), lively(CONFIG, seed=1)
    due = without_cache(model, prompt(1, 6), 24)
    same, passes = speculate(model, model, prompt(1, 6), 24, ahead)
    assert torch.equal(same, due) and passes == -(-23 // (ahead + 1))  # the first token is the prompt's pass's
    unlike, many = speculate(model, other, prompt(1, 6), 24, ahead)
    assert torch.equal(unlike, due) and passes < many <= 23


def test_speculation_reaches_the_end_of_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "ReservedCache", cache_of_one)
    model = lively(CONFIG)
    for new in (57, 58):  # the last token needs no place
        tokens, _ = speculate(model, model, prompt(1, 6), new, 4)
        assert torch.equal(tokens, generate(model, prompt(1, 6), new, cache_of(CONFIG, 1)))


def cache_of_one(config: GPTConfig, batch: int) -> ReservedCache:
    return ReservedCache(config, batch, dtype=torch.float64)

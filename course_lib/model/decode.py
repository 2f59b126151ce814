"""Generate tokens with a KV cache: every token's keys and values are computed once, and read again for each new token.

So a text has two phases, which a device feels differently:

    prefill   all tokens of the prompt at once: products of matrices, as in training
    decode    one token of each sequence at a time: every weight and every cached number is read for one product each
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from course_kit.units import Bytes
from course_lib.model.gpt import GPT, Block, GPTConfig, rotate
from course_lib.model.tiled_attention import tiled_attention


class ReservedCache:
    """Keys and values of sequences of one length, with room for `most` tokens of each (else the context) reserved."""

    def __init__(
        self, config: GPTConfig, batch_size: int, most: int | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        shape = batch_size, config.heads, most or config.context, config.head_width
        self.layers = [(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)) for _ in range(config.layers)]
        self.length = 0

    def extend(self, layer: int, keys_BHSK: Tensor, values_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens behind the others. `read` counts them when the last layer has them."""
        end = self.length + keys_BHSK.shape[2]
        room = self.layers[layer][0].shape[2]
        if end > room:
            raise ValueError(f"{end} tokens for a cache with room for {room}: make it with a larger `most`")
        for cached, new in zip(self.layers[layer], (keys_BHSK, values_BHSK)):
            cached[:, :, self.length : end] = new
        keys, values = self.layers[layer]
        return keys[:, :, :end], values[:, :, :end]

    @property
    def held_bytes(self) -> Bytes:
        """Bytes that are reserved, in use or not."""
        return Bytes(sum(each.numel() * each.element_size() for pair in self.layers for each in pair))


class Pages:
    """Memory for keys and values of many sequences, in `pages` of `page_tokens` tokens each (Kwon et al. 2023, §4)."""

    def __init__(self, config: GPTConfig, pages: int, page_tokens: int) -> None:
        self.page_tokens, self.free = page_tokens, list(range(pages))
        shape = config.layers, 2, pages, page_tokens, config.heads, config.head_width  # 2: keys, values
        self.numbers = torch.zeros(shape)


class PagedCache:
    """The cache of one sequence on `Pages` that it shares with others: token t is on page `table[t // page_tokens]`."""

    def __init__(self, pages: Pages) -> None:
        self.pages, self.length = pages, 0
        self.table: list[int] = []

    def extend(self, layer: int, keys_BHSK: Tensor, values_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens, on new pages where the last one is full; gather all in order, a copy."""
        size, end = self.pages.page_tokens, self.length + keys_BHSK.shape[2]
        if (more := -(-end // size) - len(self.table)) > len(self.pages.free):
            raise ValueError(f"all pages but {len(self.pages.free)} are taken, {more} wanted: release a sequence")
        self.table += [self.pages.free.pop() for _ in range(more)]
        numbers, table = self.pages.numbers[layer], torch.tensor(self.table)
        token = torch.arange(self.length, end)
        for cached, new in zip(numbers, (keys_BHSK, values_BHSK)):
            cached[table[token // size], token % size] = new[0].transpose(0, 1)  # (H, S, K) -> (S, H, K)
        keys, values = (cached[table].flatten(0, 1)[:end].transpose(0, 1)[None] for cached in numbers)
        return keys, values

    def release(self) -> None:
        """Give all pages back."""
        self.pages.free += self.table
        self.table, self.length = [], 0


KVCache = ReservedCache | PagedCache


@torch.no_grad()
def read(model: GPT, tokens: Int[Tensor, "batch new"], cache: KVCache) -> Float[Tensor, "batch new vocab"]:
    """Logits behind each of the new tokens, which join the cache.

    Args:
        model: a GPT without dropout, or in `eval()`.
        tokens: a whole prompt, or one token a sequence, behind those in the cache.
        cache: the keys and values of the tokens before; `read` adds the new ones.

    Raises:
        ValueError: more tokens than the model's context or the cache has room for.
    """
    start, end = cache.length, cache.length + tokens.shape[1]
    if end > model.config.context:
        raise ValueError(f"{end} tokens, but the context is {model.config.context}: stop before, or train a longer one")
    positions = torch.arange(start, end)
    x_BSD, rotated = model.embed_at(tokens, positions), positions if model.config.positions == "rotary" else None
    for layer in range(len(model.blocks)):
        block = cast(Block, model.blocks[layer])  # by number: a loop over `RecomputedLayers` yields segments
        attend = partial(attend_cached, layer, cache, rotated)
        x_BSD = x_BSD + block.attention(block.attention_norm(x_BSD), attend)
        x_BSD = x_BSD + block.mlp(block.mlp_norm(x_BSD))
    cache.length = end  # only now: all layers write behind the same tokens
    return model.logits(x_BSD)


def attend_cached(
    layer: int, cache: KVCache, rotated_N: Tensor | None, q_BHNK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor
) -> Float[Tensor, "batch heads new head_width"]:
    """Attention of N new tokens over all: their keys and values join the cache first, rotated by positions if given."""
    if rotated_N is not None:
        q_BHNK, k_BHNK = rotate(q_BHNK, rotated_N), rotate(k_BHNK, rotated_N)
    return tiled_attention(q_BHNK, *cache.extend(layer, k_BHNK, v_BHNK), causal=True)


def generate(model: GPT, prompt: Int[Tensor, "batch seq"], new: int, cache: KVCache) -> Int[Tensor, "batch new"]:
    """The `new` most probable next tokens, one after the other: one pass over the prompt, then one for each token."""
    chosen, tokens = [], prompt
    for _ in range(new):
        tokens = read(model, tokens, cache)[:, -1:].argmax(-1)
        chosen.append(tokens)
    return torch.cat([prompt[:, :0], *chosen], 1)  # none of none: nothing


def speculate(
    model: GPT, draft: GPT, prompt: Int[Tensor, "1 seq"], new: int, ahead: int
) -> tuple[Int[Tensor, "1 new"], int]:
    """The tokens of `generate`, and the number of passes of `model` behind the prompt's: fewer, because `draft`
    writes `ahead` tokens and one pass reads them all.

    Source: Leviathan et al. 2023, for the most probable token in the place of a drawn one.
    """
    caches = ReservedCache(model.config, 1), ReservedCache(draft.config, 1)
    text = torch.cat([prompt, read(model, prompt, caches[0])[:, -1:].argmax(-1)], 1)
    passes, wanted = 0, prompt.shape[1] + new
    while text.shape[1] < wanted:
        length = text.shape[1]
        few = min(ahead, wanted - length - 1)  # one more comes for free
        drafted = generate(draft, text[:, caches[1].length :], few, caches[1])
        best = read(model, torch.cat([text[:, -1:], drafted], 1), caches[0]).argmax(-1)  # behind each of them
        right = int((best[:, :-1] == drafted).long().cumprod(1).sum())  # behind a wrong one, nothing counts
        text = torch.cat([text, best[:, : right + 1]], 1)  # the model's own next token comes for free
        for cache in caches:
            cache.length = min(cache.length, length + right)  # forget the wrong drafts
        passes += 1
    return text[:, prompt.shape[1] : wanted], passes

"""Known-wrong ring attentions, and what each must be told."""

import torch
from torch import Tensor

from course_lib.collectives import operators
from course_lib.model.gpt import Attention, GPTConfig
from course_lib.parallel.context import own_tokens, ring_attention


def own_keys_only(q: Tensor, k: Tensor, v: Tensor, order: str) -> Tensor:
    """Never asks the others: a sequence cut in pieces that do not know of each other."""
    return Attention.explicit(_lent(q), q, k, v)


def the_wrong_order(q: Tensor, k: Tensor, v: Tensor, order: str) -> Tensor:
    """Takes the pieces for plain ones: some tokens see the future."""
    return ring_attention(q, k, v, "plain")


def gathers_everything(q: Tensor, k: Tensor, v: Tensor, order: str) -> Tensor:
    """Right, and every rank holds all keys and all scores."""
    whole = [operators.g(part, 2) for part in (q, k, v)]
    halves = [tensor.chunk(8, 2) for tensor in whole]
    in_order = [[h[2 * r] for r in range(4)] + [h[2 * r + 1] for r in reversed(range(4))] for h in halves]
    return own_tokens(Attention.explicit(_lent(q), *(torch.cat(parts, 2) for parts in in_order)), 2, "zigzag")


def gradients_stay_away(q: Tensor, k: Tensor, v: Tensor, order: str) -> Tensor:
    """Keys and values without their gradient: it never came home."""
    return ring_attention(q, k.detach().requires_grad_(), v, "zigzag") + 0 * k.sum()


def _lent(q: Tensor) -> Attention:
    with torch.device("meta"):
        return Attention(GPTConfig(layers=1, width=q.shape[1] * q.shape[-1], heads=q.shape[1], vocab_size=2, context=2))


WRONG = {
    own_keys_only: "the output is off",
    the_wrong_order: "the output is off",
    gathers_everything: "sends",
    gradients_stay_away: "the gradient of the keys",
}

"""Models that are no GPT of ours, written in plain PyTorch: Llama's shape, experts, latent attention.

They are the witness for what `predict` says about such shapes: what they hold and what autograd keeps is counted on
them. Modules are named as `predict.rank_tensors` names parameters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.model.gpt import RMSNorm, loss_of, rotate
from course_lib.model.zoo import Architecture, ExpertModel, GroupedAttention, LatentAttention


def norm(width: int) -> RMSNorm:
    """Our GPT's, with a weight that is not left empty."""
    made = RMSNorm(width)
    nn.init.ones_(made.weight)
    return made


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Grouped(nn.Module):
    def __init__(self, width: int, a: GroupedAttention) -> None:
        super().__init__()
        self.head_width = a.head_width
        self.q, self.k, self.v = (linear(width, n * a.head_width) for n in (a.heads, a.kv_heads, a.kv_heads))
        self.out = linear(a.heads * a.head_width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class OneKernel(torch.autograd.Function):
    """Causal attention that keeps what a fused kernel keeps, and takes values of another width than queries.

    PyTorch's on a CPU does not: it falls back on products, and keeps the scores.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        out, log_sum = (scores.softmax(-1).to(v.dtype) @ v), scores.logsumexp(-1)
        ctx.save_for_backward(q, k, v, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:3])  # nobody asks for their values


class Latent(nn.Module):
    def __init__(self, width: int, a: LatentAttention) -> None:
        super().__init__()
        self.a = a
        self.q_down, self.q_norm = linear(width, a.query_rank), norm(a.query_rank)
        self.q_up = linear(a.query_rank, a.heads * (a.plain + a.turned))
        self.kv_down, self.kv_norm = linear(width, a.kv_rank + a.turned), norm(a.kv_rank)
        self.kv_up = linear(a.kv_rank, a.heads * (a.plain + a.value))
        self.out = linear(a.heads * a.value, width)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a
        narrow, shared = self.kv_down(x).split((a.kv_rank, a.turned), -1)
        q = self.q_up(self.q_norm(self.q_down(x))).unflatten(-1, (a.heads, -1)).transpose(1, 2)
        kv = self.kv_up(self.kv_norm(narrow)).unflatten(-1, (a.heads, -1)).transpose(1, 2)
        q_plain, q_turned = q.split((a.plain, a.turned), -1)
        k_plain, v = kv.split((a.plain, a.value), -1)
        k_turned = rotate(shared.unsqueeze(1)).expand(-1, a.heads, -1, -1)
        q, k = torch.cat([q_plain, rotate(q_turned)], -1), torch.cat([k_plain, k_turned], -1)
        if a.value != a.plain + a.turned:
            mixed: Tensor = OneKernel.apply(q, k, v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int, gated: bool) -> None:
        super().__init__()
        self.gate = linear(width, hidden) if gated else None
        self.up, self.down = linear(width, hidden), linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Stacked(nn.Module):
    """A matrix for each expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, outputs, inputs) / inputs)


class Experts(nn.Module):
    def __init__(self, model: ExpertModel) -> None:
        super().__init__()
        self.gate, self.up = (Stacked(model.experts, model.width, model.expert_hidden) for _ in range(2))
        self.down = Stacked(model.experts, model.expert_hidden, model.width)

    def forward(self, x: Tensor, probabilities: Tensor, top_k: int) -> Tensor:
        gates, choices = probabilities.topk(top_k)
        order = choices.flatten().argsort()
        counts = choices.flatten().bincount(minlength=len(self.up.weight)).tolist()
        results = [
            F.linear(F.silu(F.linear(rows, gate)) * F.linear(rows, up), down)
            for rows, gate, up, down in zip(
                x[order // top_k].split(counts), *(s.weight for s in (self.gate, self.up, self.down))
            )
        ]
        by_token = torch.cat(results)[order.argsort()].unflatten(0, gates.shape)
        return (by_token * gates.to(x.dtype)[..., None]).sum(1)


class Block(nn.Module):
    def __init__(self, config: Architecture | ExpertModel, number: int) -> None:
        super().__init__()
        a, width = config.attention, config.width
        self.attention_norm, self.mlp_norm = norm(width), norm(width)
        self.attention = Latent(width, a) if isinstance(a, LatentAttention) else Grouped(width, a)
        self.router, self.top_k = None, 0
        if isinstance(config, ExpertModel) and config.has_experts(number):
            self.top_k = config.top_k
            self.router = nn.Linear(width, config.experts, bias=config.router_bias)
            self.experts = Experts(config)
            self.shared_experts = MLP(width, config.shared * config.expert_hidden, True) if config.shared else None
        else:
            hidden = config.mlp_width if isinstance(config, Architecture) else config.dense_hidden
            self.mlp = MLP(width, hidden, config.gated)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        normed = self.mlp_norm(x)
        if self.router is None:
            return x + self.mlp(normed)
        flat = normed.flatten(0, 1)
        routed = self.experts(flat, self.router(flat).float().softmax(-1), self.top_k).view_as(x)
        return x + routed + (self.shared_experts(normed) if self.shared_experts is not None else 0)


class Decoder(nn.Module):
    """Llama's shape, or Mixtral's, or DeepSeek's."""

    def __init__(self, config: Architecture | ExpertModel) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(1, config.layers + 1))
        self.final_norm = norm(config.width)
        self.head = None if config.tied else linear(config.width, config.vocab_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token_embedding(tokens)
        for block in self.blocks:
            x = block(x)
        head = self.token_embedding if self.head is None else self.head
        return loss_of(F.linear(self.final_norm(x), head.weight), targets)

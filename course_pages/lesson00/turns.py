"""Checks of lesson 00's turns: products of a block, averaged gradients, a meeting of all ranks, letters' entropy."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from course_kit import measure, ranks
from course_kit.notebook.your_turn import Function
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model import zoo
from course_lib.model.gpt import GPT, GPTConfig

EXERCISES = predict.parameters(zoo.GPT2_XL), predict.all_reduce(Bytes(10**9), world_size=16).bytes.to("GB")
"""Answers to the exercises: parameters of GPT-2 XL; GB that each of 16 ranks sends."""


def check_operations(function: Function) -> None:
    """Products of a block's forward pass, against those that a real block computes."""
    for B, S, D in ((8, 128, 128), (2, 48, 64), (1, 64, 16)):
        block = GPT(GPTConfig(layers=1, width=D, heads=4, vocab_size=256, context=S)).blocks[0]
        with measure.MatrixProducts() as counted:
            block(torch.ones(B, S, D))
        ratio = function(B, S, D) / counted.flops
        assert ratio == 1, f"for B={B}, S={S}, D={D} yours is {ratio:.4g} times what was counted"


def check_average(function: Function) -> None:
    """The mean over ranks in each `.grad`, for no more bytes than all-reduces send, on two numbers of ranks."""

    def on_each_rank() -> tuple[list[list[float]], int]:
        layer = torch.nn.Linear(3, 2)
        for parameter in layer.parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float).view_as(parameter)
            parameter.grad = (1 + dist.get_rank()) * numbers
        with measure.traffic() as sent:
            function(layer)
        gradients = [[] if p.grad is None else p.grad.flatten().tolist() for p in layer.parameters()]
        return gradients, int(sent.total_bytes)

    for world_size in (2, 4):
        mean = (1 + world_size) / 2
        due = [[mean * i for i in range(6)], [mean * i for i in range(2)]]
        enough = int(predict.all_reduce(32, world_size=world_size).bytes)  # 32 bytes: 8 numbers
        for rank, (found, n_bytes) in enumerate(ranks.run(on_each_rank, world_size=world_size)):
            told = f"{world_size} ranks bring {', '.join(f'{r + 1}·i' for r in range(world_size))} for element i"
            assert found == due, f"{told}, and rank {rank} has {found} in weight and bias afterwards"
            assert n_bytes <= enough, f"{enough} bytes do among {world_size} ranks, but rank {rank} sends {n_bytes}"


def check_mean(function: Function) -> None:
    """A float on rank 0, None elsewhere; on two numbers of ranks."""
    for world_size in (2, 4):
        found = ranks.run(lambda: function(torch.tensor([2.25 + dist.get_rank()])), world_size=world_size)
        brought = ", ".join(str(2.25 + rank) for rank in range(world_size))
        first, *others = found
        assert others == [None] * (world_size - 1), f"ranks 1 and up should return None, but {others} came"
        assert isinstance(first, float), f"rank 0 should return a float, but {first!r} came"
        assert math.isclose(first, 1.75 + world_size / 2), f"the ranks bring {brought}, and rank 0 returns {first}"


def check_letters(function: Function) -> None:
    """Mean surprise in nats; bytes that are equally likely, one alone, unequal ones."""
    cases = {b"A a." * 5: math.log(4), b"aaaa": 0.0, b"aaab": -0.75 * math.log(0.75) - 0.25 * math.log(0.25)}
    for data, due in cases.items():
        found = float(function(data))
        assert math.isclose(found, due, abs_tol=1e-6), (  # a sum in 32 bits is off by 1e-8
            f"for {data[:8]!r}… yours is {found:.4g}, which is not its mean surprise"
        )

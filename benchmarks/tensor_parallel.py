"""A tensor-parallel step of a few blocks: ours beside torch's DTensor and `parallelize_module`, in one run.

    python benchmarks/tensor_parallel.py

Both split the same blocks (norm, attention, norm, MLP) over the ranks, with and without sequence parallelism, and take
the same steps on ranks with one thread each; `turns.py` says how they are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from turns import print_table, take_turns

from course_kit import ranks
from course_lib.collectives.operators import own_part
from course_lib.model.gpt import Block, GPTConfig
from course_lib.parallel.tensor import cut_block

CONFIG = GPTConfig(layers=4, width=256, heads=8, vocab_size=256, context=128, attention="fused")


class TorchAttention(nn.Module):
    """The course's attention as PyTorch's tutorial writes it for DTensor: queries, keys and values each a layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.query, self.key, self.value, self.out = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend with the heads that this rank has, a number read from the tensors."""
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def theirs(sequence_parallel: bool) -> nn.Module:
    """Blocks that `parallelize_module` splits."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [Block(CONFIG) for _ in range(CONFIG.layers)]
    cut = Shard(1) if sequence_parallel else Replicate()
    for block in blocks:
        block.attention = TorchAttention(CONFIG)  # type: ignore[assignment]
        plan: dict[str, ParallelStyle] = {
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "mlp.up": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=cut),
            "mlp.down": RowwiseParallel(output_layouts=cut),
        }
        if sequence_parallel:
            gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
            plan |= {"attention_norm": SequenceParallel(use_local_output=True), "mlp": PrepareModuleInput(**gather)}
            plan |= {"mlp_norm": SequenceParallel(use_local_output=True), "attention": PrepareModuleInput(**gather)}
        parallelize_module(block, mesh, plan)
    return nn.Sequential(*blocks)


def ours(sequence_parallel: bool) -> nn.Module:
    """Blocks that are split by hand."""
    blocks = [Block(CONFIG) for _ in range(CONFIG.layers)]
    for block in blocks:
        cut_block(block, None, sequence_parallel)
    return nn.Sequential(*blocks)


CONTESTANTS: dict[str, Callable[[], nn.Module]] = {
    "parallelize_module": lambda: theirs(False),
    "cut_block": lambda: ours(False),
    "parallelize_module, sequence parallel": lambda: theirs(True),
    "cut_block, sequence parallel": lambda: ours(True),
}


def time_steps(repeats: int, batch_size: int) -> dict[str, list[float]]:
    """Seconds of each forward and backward pass on this rank."""
    torch.manual_seed(0)
    x = torch.randn(batch_size, CONFIG.context, CONFIG.width)

    def step_of(name: str) -> Callable[[], None]:
        model = CONTESTANTS[name]()

        def step() -> None:
            model.zero_grad(set_to_none=True)
            inputs = (own_part(x, 1) if "sequence" in name else x.clone()).requires_grad_()
            model(inputs).square().sum().backward()

        return step

    return take_turns({name: step_of(name) for name in CONTESTANTS}, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--world-size", type=int, default=2)
    given = parser.parse_args()
    with ranks.Ranks(given.world_size, timeout_s=600, diagnose=False) as pool:
        per_rank = pool.run(time_steps, given.repeats, given.batch_size)
    print(f"torch {torch.__version__}, {given.world_size} ranks with 1 thread each, {given.batch_size} sequences")
    pairs = zip(list(CONTESTANTS)[::2], list(CONTESTANTS)[1::2])
    print_table(per_rank, {name: rival for rival, ours in pairs for name in (rival, ours)})


if __name__ == "__main__":
    main()

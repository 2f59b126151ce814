"""A pipeline stage whose layers are cut over tensor ranks: a `GPTStage` in the parts of a `ParallelGPT`."""

from __future__ import annotations

from typing import Self

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.collectives.operators import Group
from course_lib.parallel.tensor_gpt import ParallelBlock, ParallelGPT
from course_lib.pipeline.stages import GPTStage


class ParallelStage(ParallelGPT):
    """Some consecutive layers of a GPT, each cut over the ranks of a group. All of them must call it alike.

    Bytes sent by each rank: those of its `ParallelBlock`s, and of the ends that it has.
    """

    is_first: bool
    is_last: bool
    blocks: nn.ModuleDict  # type: ignore[assignment]

    @classmethod
    def from_(cls, stage: GPTStage, group: Group = None, sequence_parallel: bool = False) -> Self:  # type: ignore[override]
        """Cut a stage that every rank has built alike.

        Args:
            stage: stays as it is.
            group: the ranks that share it; None for all.
            sequence_parallel: the stream, also from stage to stage, is cut along the sequence.

        Raises:
            ValueError: heads, hidden features or width do not divide by the number of ranks.
        """
        self = cls()
        self._cut_ends(stage, group, sequence_parallel)
        self.is_first, self.is_last = stage.is_first, stage.is_last
        cut = {number: ParallelBlock.from_(block, group, sequence_parallel) for number, block in stage.blocks.items()}  # type: ignore[arg-type]
        self.blocks = nn.ModuleDict(cut)
        return self

    tied_weight = GPTStage.tied_weight
    """This rank's features of it: the other end's rank with the same part of every layer has the same features."""

    def recv_buffer(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq_part width"]:
        """Room for what comes from the stage before, or for its gradient."""
        some, (batch, seq) = next(self.parameters()), tokens.shape
        part = seq // dist.get_world_size(self.group) if self.sequence_parallel else seq
        return torch.empty(batch, part, self.config.width, dtype=some.dtype, device=some.device)

    def forward(self, x: Tensor, targets: Int[Tensor, "batch seq"] | None = None) -> Tensor:
        """Tokens (on the first stage) or the stream in; the stream or, on the last stage, logits or the loss out."""
        x = self._embed(x) if self.is_first else x
        for block in self.blocks.values():
            x = block(x)
        return self._predict(x, targets) if self.is_last else x

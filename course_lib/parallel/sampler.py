"""Who reads which item: one shuffled order for all, cut into batches, each batch cut into shares for the ranks.

Everything is a function of (seed, epoch, step, rank). Nothing is remembered, so a run that stops at step 700 goes on
at step 700, on any number of ranks with the same global batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course_lib.collectives.algorithms import split_sizes
from course_lib.model.seeds import mix


@dataclass(frozen=True)
class ShardedSampler:
    """Numbers of the items that one rank reads. Every item is read exactly once an epoch, by one rank.

    The last batch may be smaller. Its shares then differ by one item, and some may be empty; yet all ranks make the
    same number of steps, so none is left waiting. (`torch.utils.data.DistributedSampler` repeats items instead, or
    drops them.) With shares of different size the mean of the ranks' mean losses is not the mean of the batch: weigh
    them by their number of items, as lesson 05 does for micro-batches.

    Attributes:
        n_items: size of the data set.
        batch_size: items in a batch of all ranks together.
        rank, world_size: whose share to give.
        seed: names the order.
        shuffle: False reads the items in their own order.

    Raises:
        ValueError: a size is not positive, or there is no such rank.
    """

    n_items: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.n_items < 0 or self.batch_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"n_items={self.n_items}, batch_size={self.batch_size}, rank={self.rank}, "
                f"world_size={self.world_size}: give 0 or more items, 1 or more a batch, and a rank below world_size"
            )

    def __len__(self) -> int:
        """Steps in an epoch, the same for every rank."""
        return -(-self.n_items // self.batch_size)

    def epoch(self, number: int) -> list[list[int]]:
        """This rank's items, step by step; fits `DataLoader(batch_sampler=...)` as long as no share is empty."""
        order = self._order(number)
        return [self._share(order[step * self.batch_size :][: self.batch_size]) for step in range(len(self))]

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.n_items))
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        return torch.randperm(self.n_items, generator=generator).tolist()

    def _share(self, batch: list[int]) -> list[int]:
        sizes = split_sizes(len(batch), self.world_size)
        start = sum(sizes[: self.rank])
        return batch[start : start + sizes[self.rank]]

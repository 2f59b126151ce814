"""A model of PyTorch's allocator for CUDA: why a card can be out of memory with a third of its memory free.

Asking the driver for memory is slow, so the allocator asks for large *segments*, cuts *blocks* out of them, and keeps
freed ones for the next request. A free block can serve a smaller request, and two free neighbours melt into one. But
blocks never move: memory that is free in many pieces is of no use to a large request. That is *fragmentation*.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings and one stream:

    a request                       is rounded up to    and cut out of a segment of
    up to 1 MiB                     512 B               2 MiB
    above 1 MiB, below 10 MiB       512 B               20 MiB
    10 MiB and more                 512 B               its own size, rounded up to 2 MiB

The allocator takes the smallest free block that is large enough, of the same kind (small or large); its rest stays
free as a block, if it has 512 B (small) or more than 1 MiB (large). When the card is full, segments that are wholly
free go back to the driver, and the allocator tries once more.

The model runs on any machine. It leaves out streams, graphs, expandable segments, garbage collection, and the memory
that the driver and libraries take for themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from course_kit.units import Bytes

_MIB = 2**20
_SMALLEST, _SMALL, _SMALL_SEGMENT, _LARGE, _LARGE_SEGMENT, _ROUND = 512, _MIB, 2 * _MIB, 10 * _MIB, 20 * _MIB, 2 * _MIB


class OutOfMemory(RuntimeError):
    """No free block is large enough and the card has no room for another segment."""

    def _render_traceback_(self) -> list[str]:
        """The line that a notebook shows, like the last line of the real error."""
        return [f"OutOfMemory: {self}"]


@dataclass
class Block:
    """A piece of a segment."""

    offset: int  # in its segment
    nbytes: int
    owner: Hashable | None = None  # None while it is free


@dataclass
class AllocatorSegment:
    """Memory that the driver gave at once."""

    nbytes: int
    small: bool  # whether it serves requests of up to 1 MiB, or those above
    blocks: list[Block] = field(default_factory=list)  # side by side, in order; together they are the segment

    @property
    def is_free(self) -> bool:
        """Whether the segment can go back to the driver."""
        return all(block.owner is None for block in self.blocks)


class CachingAllocator:
    """A card of `capacity` bytes, and the owner of each block of it.

    Attributes:
        segments: the memory taken from the card, in that order.
        peak_allocated, peak_reserved: the most so far, as `torch.cuda.max_memory_allocated` and
            `max_memory_reserved` report it.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a card has at least 1 byte")
        self.capacity, self.segments = Bytes(capacity), list[AllocatorSegment]()
        self.peak_allocated = self.peak_reserved = Bytes(0)
        self._places: dict[Hashable, tuple[AllocatorSegment, Block]] = {}

    @property
    def allocated(self) -> Bytes:
        """Bytes of all blocks in use, each rounded up."""
        return Bytes(sum(block.nbytes for _, block in self._places.values()))

    @property
    def reserved(self) -> Bytes:
        """Bytes of all segments, which other programs see as taken."""
        return Bytes(sum(segment.nbytes for segment in self.segments))

    @property
    def largest_free(self) -> Bytes:
        """The largest free piece: a free block, or the rest of the card. (A request of 9 MiB takes 20 of that rest.)"""
        free = [b.nbytes for s in self.segments for b in s.blocks if b.owner is None]
        return Bytes(max([*free, self.capacity - self.reserved]))

    def allocate(self, owner: Hashable, nbytes: int) -> None:
        """Give `nbytes` to `owner`.

        Raises:
            ValueError: nothing is asked for, or `owner` has a block already.
            OutOfMemory: there is no piece that is large enough.
        """
        if nbytes < 1 or owner is None or owner in self._places:
            raise ValueError(f"allocate({owner!r}, {nbytes}): give a new owner, and at least 1 byte")
        size = _round_up(nbytes, _SMALLEST)
        segment, block = self._free_block(size) or self._new_segment(size)
        left = block.nbytes - size
        if left >= _SMALLEST if segment.small else left > _SMALL:  # a large segment keeps a rest of up to 1 MiB whole
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(block.offset + size, left))
            block.nbytes = size
        block.owner = owner
        self._places[owner] = segment, block
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def free(self, owner: Hashable) -> None:
        """Take back the block of `owner`, which merges with free neighbours; its segment stays.

        Raises:
            ValueError: `owner` has no block.
        """
        if owner not in self._places:
            raise ValueError(f"free({owner!r}): it holds no block")
        segment, block = self._places.pop(owner)
        block.owner = None
        joined: list[Block] = []
        for each in segment.blocks:
            if joined and joined[-1].owner is None and each.owner is None:
                joined[-1].nbytes += each.nbytes  # neighbours, both free: one block
            else:
                joined.append(each)
        segment.blocks = joined

    def empty_cache(self) -> None:
        """Give all wholly free segments back, as `torch.cuda.empty_cache` does."""
        self.segments = [segment for segment in self.segments if not segment.is_free]

    def replay(self, lifetimes: Iterable[tuple[int, int | None, int]]) -> None:
        """Allocate and free as a recorded program did, moment by moment; of each moment, births first.

        Args:
            lifetimes: (born, died, bytes) of each block, as `measure.memory`'s `record.lifetimes` gives them. `died` is
                None for a block that outlives the record.

        Raises:
            OutOfMemory: the program does not fit.
        """
        events = []
        for number, (born, died, nbytes) in enumerate(lifetimes):
            if nbytes and died != born:
                events.append((born, 0, number, nbytes))
                events += [] if died is None else [(died, 1, number, 0)]
        for _, dies, number, nbytes in sorted(events):  # by moment, births (0) before deaths (1)
            if dies:
                self.free(number)
            else:
                self.allocate(number, nbytes)

    def _free_block(self, size: int) -> tuple[AllocatorSegment, Block] | None:
        fitting = [
            (segment, block)
            for segment in self.segments
            if segment.small == (size <= _SMALL)
            for block in segment.blocks
            if block.owner is None and block.nbytes >= size
        ]
        return min(fitting, key=lambda place: place[1].nbytes, default=None)  # of equals, the oldest segment's

    def _new_segment(self, size: int) -> tuple[AllocatorSegment, Block]:
        nbytes = _SMALL_SEGMENT if size <= _SMALL else _LARGE_SEGMENT if size < _LARGE else _round_up(size, _ROUND)
        if self.reserved + Bytes(nbytes) > self.capacity:
            self.empty_cache()
        if self.reserved + Bytes(nbytes) > self.capacity:
            free = self.capacity - self.allocated
            raise OutOfMemory(
                f"out of memory: {Bytes(size)} asked for. Of {self.capacity}, {self.allocated} are in use and "
                f"{free} ({free / self.capacity:.0%}) are free, but the largest free piece has {self.largest_free}"
            )
        segment = AllocatorSegment(nbytes, size <= _SMALL, [Block(0, nbytes)])
        self.segments.append(segment)
        return segment, segment.blocks[0]


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit  # division that rounds up

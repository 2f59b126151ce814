"""The model of the caching allocator: its rules one by one, a real step through it, and on a GPU the real one."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from course_kit import measure
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.predict.allocator import CachingAllocator, OutOfMemory
from course_lib.train.step import train_step
from tests.predict.refused import refused

MIB = 2**20


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left is too little for a block of its own
    ],
)
def test_what_one_request_takes(asked: int, allocated: int, reserved: int) -> None:
    card = CachingAllocator(100 * MIB)
    card.allocate("x", asked)
    assert (card.allocated, card.reserved) == (allocated, reserved)
    card.free("x")
    assert (card.allocated, card.reserved, card.peak_allocated) == (0, reserved, allocated)
    card.empty_cache()
    assert (card.reserved, card.peak_reserved) == (0, reserved)


def test_small_and_large_requests_do_not_share() -> None:
    card = CachingAllocator(100 * MIB)
    card.allocate("large", 4 * MIB)
    card.allocate("small", 1000)
    assert card.reserved == 22 * MIB


def test_the_smallest_block_that_fits_is_taken_and_neighbours_melt() -> None:
    card = CachingAllocator(20 * MIB)
    for name in "abcde":
        card.allocate(name, 4 * MIB)
    card.free("b")
    card.free("c")
    card.free("e")
    card.allocate("in e", 3 * MIB)
    assert [(block.offset // MIB, block.owner) for block in card.segments[0].blocks] == [
        (0, "a"), (4, None), (12, "d"), (16, "in e"),  # 1 MiB left over is too little for a block of its own
    ]  # fmt: skip
    card.allocate("in b and c", 8 * MIB)
    assert card.reserved == 20 * MIB


def test_free_memory_in_pieces_serves_nobody() -> None:
    card = CachingAllocator(60 * MIB)
    for number in range(15):
        card.allocate(number, 4 * MIB)
    for number in range(1, 15, 2):
        card.free(number)
    assert card.allocated == 32 * MIB and card.largest_free == 4 * MIB
    with pytest.raises(OutOfMemory, match=r"28.00 MiB \(47%\) are free, but the largest free piece has 4.00 MiB"):
        card.allocate("six", 6 * MIB)


def test_a_request_may_need_more_than_its_bytes() -> None:
    card = CachingAllocator(12 * MIB)
    assert card.largest_free == 12 * MIB
    with pytest.raises(OutOfMemory):
        card.allocate("nine", 9 * MIB)


def test_a_full_card_gives_free_segments_back_first() -> None:
    card = CachingAllocator(40 * MIB)
    card.allocate("a", 30 * MIB)
    card.free("a")
    card.allocate("b", 36 * MIB)
    assert card.reserved == 36 * MIB


def test_nothing_overlaps_and_nothing_is_lost() -> None:
    chosen, card, alive = random.Random(0), CachingAllocator(400 * MIB), []
    for number in range(2000):
        if alive and chosen.random() < 0.5:
            card.free(alive.pop(chosen.randrange(len(alive))))
        else:
            try:
                card.allocate(number, int(2 ** chosen.uniform(4, 25)))
                alive.append(number)
            except OutOfMemory:
                card.free(alive.pop(0))
        for segment in card.segments:
            ends = [block.offset + block.nbytes for block in segment.blocks]
            assert [0, *ends[:-1]] == [block.offset for block in segment.blocks] and ends[-1] == segment.nbytes
        assert card.allocated <= card.reserved <= card.capacity
    assert {b.owner for s in card.segments for b in s.blocks} - {None} == set(alive)


def record_of(steps: int, device: str = "cpu"):
    config = GPTConfig(layers=4, width=128, heads=4, vocab_size=256, context=128)
    model = GPT(config, device=device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with measure.memory(model, optimizer) as record:
        for step in range(steps):
            tokens = torch.randint(0, 256, (8, 128 - 20 * step), device=device)
            train_step(model, optimizer, (tokens, tokens))
    return record


def test_a_recorded_step_goes_through_it() -> None:
    record, card = record_of(2), CachingAllocator(2**30)
    card.replay(record.lifetimes)
    assert record.peak.total <= card.peak_allocated <= 1.05 * int(record.peak.total)  # by rounding up
    assert card.peak_reserved >= card.peak_allocated
    with pytest.raises(OutOfMemory, match="asked for"):
        CachingAllocator(card.peak_allocated // 2).replay(record.lifetimes)


def twice(card: CachingAllocator) -> None:
    card.allocate("a", 1)
    card.allocate("a", 1)


test_mistakes_are_explained = refused(
    (lambda: twice(CachingAllocator(2 * MIB)), "a new owner, and at least 1 byte"),
    (lambda: CachingAllocator(2 * MIB).free("b"), "it holds no block"),
    (lambda: CachingAllocator(0), "at least 1 byte"),
)


@pytest.mark.gpu
def test_the_real_one_takes_the_same() -> None:
    gc.collect()  # what earlier tests forgot to free shall not go in the middle of this one
    torch.cuda.empty_cache()
    chosen, card, alive = random.Random(1), CachingAllocator(8 * 2**30), {}
    with torch.cuda.stream(torch.cuda.Stream()):  # free blocks of other streams, which earlier tests left, do not serve
        reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        for number in range(500):
            if alive and chosen.random() < 0.5:
                gone = chosen.choice(list(alive))
                del alive[gone]
                card.free(gone)
            else:
                nbytes = int(2 ** chosen.uniform(4, 26))
                alive[number] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
                card.allocate(number, nbytes)
            assert torch.cuda.memory_allocated() - allocated == card.allocated
            # Of two free blocks of one size, the real one takes that with the lower address, which the driver chose.
            assert torch.cuda.memory_reserved() - reserved == pytest.approx(card.reserved, rel=0.05)

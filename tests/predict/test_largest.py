"""What fits: the search against trying every number, and what it says about the first one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib import predict
from course_lib.model.gpt import GPTConfig
from course_lib.predict import Setup
from tests.predict.refused import refused

SMALL = GPTConfig(layers=2, width=16, heads=2, vocab_size=31, context=64)
PLAIN = Setup(SMALL, batch_size=2, seq=16)


@pytest.mark.parametrize("memory", [200_000, 333_333, 1_000_000])
@pytest.mark.parametrize("name", ["batch_size", "layers", "vocab_size", "ffn_width"])
def test_it_is_what_trying_all_of_them_finds(name: str, memory: int) -> None:
    def held(n: int) -> int:
        setup = PLAIN.with_(batch_size=n) if name == "batch_size" else PLAIN.with_(config=replace(SMALL, **{name: n}))
        return predict.peak(setup).total

    found = predict.largest(PLAIN, name, memory)
    n = 1
    while held(n + 1) <= memory:
        n += 1
    assert (found.value, found.account.total) == (n, held(n))
    assert found.account == predict.peak(found.setup)
    more = Bytes(held(n + 1) - memory)
    assert found.bounded_by == f"{name}={n + 1} needs {more} more than the {Bytes(memory)} that there are"


def test_exactly_enough_is_enough() -> None:
    needed = predict.peak(PLAIN.with_(batch_size=5)).total
    for memory, value in ((needed, 5), (needed - 1, 4)):
        assert predict.largest(PLAIN, "batch_size", memory).value == value


@pytest.mark.parametrize(
    ("setup", "name", "value", "words"),
    [
        (PLAIN, "seq", 64, "seq=65 is longer than the model's context of 64"),
        (
            PLAIN.with_(batch_size=6),
            "micro_batch",
            6,
            "micro_batch=7 is more than the 6 sequences that fall on the rank",
        ),
        (PLAIN, "batch_size", 10, "batch_size=11 is above the limit of 10"),
    ],
    ids=["the model's context", "the sequences of a rank", "a limit"],
)
def test_something_else_may_end_it_before_the_memory(setup: Setup, name: Any, value: int, words: str) -> None:
    found = predict.largest(setup, name, 10**10, limit=10 if name == "batch_size" else 10**6)
    assert found.value == value == getattr(found.setup, name)
    assert found.bounded_by.startswith(words)


def test_a_larger_piece_may_need_less_than_a_smaller_one() -> None:
    """Eight rows in 5 + 3 keep fewer activations beside the gradients of the first piece than in 4 + 4."""
    setup = Setup(SMALL, 8, 4)
    needs = {n: predict.peak(setup.with_(micro_batch=n)).total for n in range(1, 9)}
    assert needs[5] < needs[4]
    for memory in needs.values():
        largest = max(n for n, needed in needs.items() if needed <= memory)
        assert predict.largest(setup, "micro_batch", memory).value == largest


def test_widths_are_multiples_of_the_heads_and_batches_of_the_ranks() -> None:
    assert predict.largest(PLAIN, "width", 10**6).value % 2 == 0
    rotary = PLAIN.with_(config=GPTConfig(1, 12, 3, 31, 64, positions="rotary"))
    assert predict.largest(rotary, "width", 10**6, holds=predict.model_states).value % 6 == 0

    def kept(setup: Setup) -> MemoryAccount:
        return MemoryAccount(activations=predict.activations(setup))

    shared = predict.largest(PLAIN.with_(batch_size=4, data=4), "batch_size", 10**6, holds=kept)
    assert shared.value == 4 * predict.largest(PLAIN, "batch_size", 10**6, holds=kept).value


@pytest.mark.parametrize(("gradients", "bytes_each"), [("same", 16), ("fp32", 18)])
def test_the_largest_model_by_its_states(gradients: Any, bytes_each: int) -> None:
    """80 GB hold 5 billion parameters of 16 bytes, and none besides."""
    setup = Setup(1, precision="mixed", gradients=gradients)
    found = predict.largest(setup, "config", 80 * 10**9, holds=predict.model_states)
    assert found.value == 80 * 10**9 // bytes_each
    assert (found.account.total, found.setup.config) == (found.value * bytes_each, found.value)


test_questions_without_an_answer = refused(
    (lambda: predict.largest(PLAIN, "batch_size", 0), "memory=0: must be positive"),
    (lambda: predict.largest(PLAIN, "batch_size", 1000), "nothing fits: batch_size=1 needs .* more than the 1,000 B"),
    (
        lambda: predict.largest(PLAIN, "precision", 10**6),
        "'precision' is no number to search for: choose one of config, batch_size",
    ),
    (lambda: predict.largest(Setup(10**9), "layers", 10**6), "'layers' is no number"),
    (lambda: predict.largest(Setup(10**9), "batch_size", 10**6), "^1,000,000,000 parameters have no layers"),
    (lambda: predict.largest(PLAIN.with_(tensor=2), "batch_size", 10**6), "^peak does not hold for tensor=2"),
)

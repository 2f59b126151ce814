"""What is the largest model, batch or sequence that fits? A search over any one number of a setup.

    predict.largest(setup, "batch_size", hardware.A100_80GB.memory)
    predict.largest(setup, "layers", hardware.A100_80GB.memory)
    predict.largest(Setup(1, precision="mixed"), "config", Bytes(80 * 10**9), holds=predict.model_states)

What is held must not shrink when the number grows; then doubling finds a number that is too large, and halving the gap
the largest one that is not, in about 2 · log2 of the answer looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.model.gpt import GPTConfig
from course_lib.predict.peak import peak
from course_lib.predict.setup import Setup, positive

_OF_SETUP = ("config", "batch_size", "seq", "micro_batch")
_OF_CONFIG = ("layers", "width", "ffn_width", "vocab_size")
_IN_STEPS = {"batch_size": "data", "seq": "context"}


@dataclass(frozen=True)
class Largest:
    """The largest of a kind that fits.

    Attributes:
        value: the number that was asked for.
        setup: with this number in it.
        account: what it holds.
        bounded_by: why not the next one, in words with the numbers.
    """

    value: int
    setup: Setup
    account: MemoryAccount
    bounded_by: str


def largest(
    setup: Setup, name: str, memory: int, holds: Callable[[Setup], MemoryAccount] = peak, limit: int = 2**48
) -> Largest:
    """The largest value of `setup.name` with which `holds(setup).total` is at most `memory`.

    A batch grows in steps of the ranks that share it, a sequence likewise, and a width in steps of the heads.

    Args:
        setup: everything else; what it has for `name` does not matter.
        name: a number of the setup ("batch_size", "seq", "micro_batch", "config" for a number of parameters), or of its
            `GPTConfig` ("layers", "width", "ffn_width", "vocab_size").
        memory: bytes that there are.
        holds: what must fit: `peak`, `model_states`, or a function of your own that does not fall when `name` grows.
        limit: the largest value to try.

    Raises:
        ValueError: `name` is no such number, there is no memory, or not even the smallest value fits or is possible.
    """
    positive(memory=memory)
    step = _step(setup, name)

    def of(times: int) -> Setup:
        return _with(setup, name, times * step)

    def refusal(times: int) -> str:
        """Why this many steps are too many; empty if they fit."""
        if times * step > limit:
            return f"{name}={times * step} is above the limit of {limit}"
        try:
            needed = holds(of(times)).total
        except ValueError as mistake:  # a setup that cannot be, such as a sequence beyond the context
            return str(mistake)
        more = Bytes(needed - memory)
        return "" if more <= 0 else f"{name}={times * step} needs {more} more than the {Bytes(memory)} that there are"

    holds(of(1))  # what is wrong with the smallest one is wrong with the question
    if refusal(1):
        raise ValueError(f"nothing fits: {refusal(1)}")
    fits, fails = 1, 2
    while not refusal(fails):
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (fits, middle) if refusal(middle) else (middle, fails)
    found = of(fits)
    return Largest(fits * step, found, holds(found), refusal(fails))


def _step(setup: Setup, name: str) -> int:
    """What the value must be a multiple of."""
    if name == "width":
        pairs = 2 if setup.gpt.positions == "rotary" else 1
        return setup.gpt.heads * pairs
    return getattr(setup, _IN_STEPS[name]) if name in _IN_STEPS else 1


def _with(setup: Setup, name: str, value: int) -> Setup:
    """The setup with another number in it, or in its config."""
    if name in _OF_SETUP:
        return setup.with_(**{name: value})
    if name in _OF_CONFIG and isinstance(setup.config, GPTConfig):
        return setup.with_(config=replace(setup.config, **{name: value}))
    raise ValueError(f"{name!r} is no number to search for: choose one of {', '.join([*_OF_SETUP, *_OF_CONFIG])}")

"""Random programs for an answer with state, run beside a simple reference; the shortest that differs is the message.

An answer with state is right in the scenes that its author thought of. So hundreds of short programs (its *lives*),
drawn with fixed seeds, run line by line in two namespaces: one has the answer, the other a reference under the same
name. The first program that differs is made shorter by leaving out lines as long as a difference remains; the rest can
be pasted into a cell.

(The `hypothesis` library does this, and more. Students and the grader's kernel would have to install it for one check.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from course_kit.checks.check import the_same
from course_kit.checks.failed import CheckFailed, fail

Names = dict[str, Any]


def random_programs(
    what: str, begin: str, answer: Names, reference: Names, draw: Callable[[random.Random, Names], str],
    looks: Callable[[Names], Sequence[str]], *, count: int = 100, length: int = 20, limit_s: float = 120,
    look: str = "",
) -> None:  # fmt: skip
    """Run `count` lives of at most `length` lines each, and fail with the shortest that differs.

        random_programs("a cache", "cache = Paged(SMALL, 3, 2)", {"Paged": Paged}, {"Paged": Copies},
              lambda chance, names: f"cache.drop({chance.randrange(3)})",
              lambda names: [f"cache.read({n})" for n, past in enumerate(names["cache"].past) if past])

    Args:
        what: the answer, in words.
        begin: the first line of each life.
        answer, reference: the names that the lines use, with the answer behind them (`globals()`, where the answer
            reads some itself) and with the reference. After each life both are as before.
        draw: returns the next line, which the contract must allow, from random numbers and the reference's names.
        looks: returns the expressions that are compared after each line, from the reference's names.
        limit_s: many times as long as a good answer takes: an answer that is not through by then fails.
    """
    first_difference = partial(_first_difference, answer, reference, looks)
    end = time.monotonic() + limit_s
    for number in range(count):
        life: list[str] = []
        if difference := first_difference(_drawn(random.Random(number), begin, draw, reference, length, life)):
            life, difference = _shortest(life, difference, first_difference, end)
            pasted = "\n".join(f"    {line}" for line in life)
            fail(f"{what}, differently in these {len(life)} lines:\n{pasted}", came=difference, look=look)
        if time.monotonic() > end:
            fail(f"{count} lives of {what}", expected=f"at most {limit_s:g} s", came=f"{number + 1} in that time")
    print(f"✓ {count} random lives of {what}")


def _drawn(
    chance: random.Random, begin: str, draw: Callable[[random.Random, Names], str], names: Names, most: int, life: list
) -> Iterator[str]:
    """A life, line by line: each is drawn when those before it have run, and noted in `life`."""
    life.append(begin)
    yield begin
    for _ in range(chance.randint(1, most)):
        life.append(draw(chance, names))
        yield life[-1]


def _first_difference(
    answer: Names, reference: Names, looks: Callable[[Names], Sequence[str]], life: Iterable[str]
) -> str:
    """Run a life in both namespaces, for its first difference; a line that the reference cannot run raises."""
    with _as_before(answer), _as_before(reference):
        for line in life:
            code = compile(line, "<string>", "exec")  # once for both
            exec(code, reference)
            try:
                exec(code, answer)
                for expression in looks(reference):
                    the_same(eval(expression, answer), eval(expression, reference), f"{expression}, after {line}", "")
            except CheckFailed as problem:
                return " ".join(str(problem).split())
            except Exception as problem:
                return f"{line} raised {type(problem).__name__}: {problem}"
    return ""


@contextmanager
def _as_before(names: Names) -> Iterator[None]:
    """Undo at the end all that the block has bound in these very names, which functions may read."""
    before = dict(names)
    try:
        yield
    finally:
        for name in names.keys() - before.keys():
            del names[name]
        names.update(before)


def _shortest(
    life: list[str], difference: str, differs: Callable[[list[str]], str], end: float
) -> tuple[list[str], str]:
    """Leave out each line without which the life still differs."""
    place = len(life) - 1
    while place > 0 and time.monotonic() < end:
        shorter = life[:place] + life[place + 1 :]
        found = ""
        with suppress(Exception):  # a shorter life may lack a name that the reference needs
            found = differs(shorter)
        if found:  # now other lines may have become needless: begin at the end again
            life, difference = shorter, found
        place = len(life) - 1 if found else place - 1
    return life, difference

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
from contextlib import contextmanager
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
            reads some itself) and with the reference. After each life they are as before.
        draw: the next line, from the reference's names; the contract must allow it.
        looks: the expressions that are compared after each line, from the reference's names.
        limit_s: many times as long as a good answer takes: an answer that is not through by then fails.
        look: where to look when a life differs.
    """
    end = time.monotonic() + limit_s
    for number in range(count):
        life: list[str] = []
        with _as_before(answer) as mine, _as_before(reference) as right:
            drawn = _drawn(random.Random(number), begin, draw, right, length, life)
            difference = _first_difference(drawn, mine, right, looks)
        if difference:
            life, difference = _shortest(life, difference, lambda it: _difference(it, answer, reference, looks), end)
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


def _difference(life: Sequence[str], answer: Names, reference: Names, looks: Callable[[Names], Sequence[str]]) -> str:
    """The first difference, and its line; empty for none, or where the reference cannot run these lines."""
    with _as_before(answer) as mine, _as_before(reference) as right:
        try:
            return _first_difference(life, mine, right, looks)
        except Exception:  # made shorter, it lacks what a line needs
            return ""


def _first_difference(life: Iterable[str], mine: Names, right: Names, looks: Callable[[Names], Sequence[str]]) -> str:
    """Run line by line in both namespaces; a line that the reference cannot run raises."""
    for line in life:
        code = compile(line, "<string>", "exec")  # once for both
        exec(code, right)
        try:
            exec(code, mine)
            for expression in looks(right):
                the_same(eval(expression, mine), eval(expression, right), f"{expression}, after {line}", "")
        except CheckFailed as problem:
            return " ".join(str(problem).split())
        except Exception as problem:
            return f"{line} raised {type(problem).__name__}: {problem}"
    return ""


@contextmanager
def _as_before(names: Names) -> Iterator[Names]:
    """Yield these very names, since functions may read them, and undo afterwards whatever lines have bound."""
    before = dict(names)
    try:
        yield names
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
        found = differs(shorter)
        if found:  # now other lines may have become needless: begin at the end again
            life, difference = shorter, found
        place = len(life) - 1 if found else place - 1
    return life, difference

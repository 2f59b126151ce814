"""The checks of a lab: values against an oracle, and *resources*: bytes held, bytes and messages sent, FLOPs.

A technique is graded on its purpose. A "sharded" optimizer that shards nothing gives the right weights; only its bytes
tell. Each check here prints a line when it holds and raises `CheckFailed` otherwise: with the expected value, the one
that came, and a place to look at. Types are compared before values, so an answer cannot define its own equality.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_kit import measure, ranks
from course_kit.accounts import ModelledBytes, TrafficAccount
from course_kit.checks.failed import CheckFailed, call_text, describe, fail, is_stub, passed, told_on_a_rank, where
from course_kit.checks.held_bytes import HeldBytes, held
from course_kit.checks.restrictions import CHANNELS, files_that_ran, out_of_reach, written_with
from course_kit.checks.side_effects import MayChange, Snapshot, named, unchanged
from course_kit.checks.socket_bytes import carried
from course_kit.own_time import BUSY, OwnTime
from course_kit.units import Bytes, Quantity

__all__ = [
    "CHANNELS", "CheckFailed", "HeldBytes", "at_least", "at_most", "call", "carried", "close", "crossing", "equal",
    "files_that_ran", "held", "on_ranks", "only_messages", "peak", "raises", "that", "traffic", "unchanged",
    "within", "written_with",
]  # fmt: skip


_QUANTITIES = tuple(Quantity.__subclasses__())  # those so far: later ones are an answer's own
_TYPE = "the type of what is returned, before its value"
_BEHIND = "what {} was given, and the state around it, after the call"

# --- running an answer ---------------------------------------------------------------------------------------------


def call(fn: Callable, *args: Any, look: str = "", may_change: MayChange = (), **kwargs: Any) -> Any:
    """Call a student's function; any error that it raises becomes a `CheckFailed` that names the line of the cell.

    So does a side effect that the contract does not allow by `may_change` (see `side_effects.Snapshot`), and code that
    would look at the frames of its judges.
    """
    out_of_reach(fn)
    try:
        return _watched(fn, args, kwargs, may_change, look)
    except (Exception, SystemExit) as problem:
        if isinstance(problem, CheckFailed) or dist.is_initialized():
            raise  # a rank's failure is told by `on_ranks`, with the fate of the others
        if is_stub(problem):
            fail(f"{describe(fn)} is not written yet", look="the cell above that says YOUR CODE HERE")
        came = f"{type(problem).__name__}: {str(problem)[:300]}"
        fail(f"{call_text(fn, args, kwargs)} raised an error", came=came, look=look or where(problem))


class OutOfTime(BaseException):
    """The end of an answer's time, raised inside of the answer, where no `except Exception` stops this exception."""


def within(seconds: float, fn: Callable, *args: Any, look: str = "", may_change: MayChange = (), **kwargs: Any) -> Any:
    """Call like `check.call`, and stop the call after `seconds`, without those in which other programs had the cores.

    Give many times as long as a good answer takes. Only Python can be stopped: a single long operation of PyTorch ends
    first.

    Raises:
        CheckFailed: the time was up, or the function raised an error.
    """
    caller, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()
    own = OwnTime(lambda: [os.getpid()])

    def stop() -> None:
        while (left_s := own.left_s(seconds)) > 0:
            if ended.wait(min(left_s, 0.25)):
                return
            own.look()
        with lock:
            if not ended.is_set():  # raised between two lines of the caller's Python, wherever that is
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller), ctypes.py_object(OutOfTime))

    threading.Thread(target=stop, daemon=True).start()
    try:
        result = call(fn, *args, may_change=may_change, **kwargs)
        with lock:
            ended.set()
        return result
    except OutOfTime:
        came = f"it was stopped after {seconds:g} s" + (f" of its own ({BUSY})" if own.cannot_say(seconds) else "")
    finally:
        ended.set()  # an error came first: nothing may be raised into the caller later
    return fail(call_text(fn, args, kwargs), expected=f"an answer within {seconds:g} s", came=came, look=look)


def on_ranks(
    fn: Callable, *args: Any, world_size: int = 4, timeout_s: float = 50, look: str = "",
    may_change: MayChange = "random", **kwargs: Any,
) -> list[Any]:  # fmt: skip
    """Call a function on real ranks, for the results in rank order; a deadlock is a `CheckFailed` that says why.

    Side effects are seen on each rank. Mostly the function is the lab's, which makes models and data there and calls
    the student's by `check.call`: a check that fails there fails here, in its own words.
    """
    job: tuple[Any, ...] = (fn, *args) if fn is _counted else (_watched, fn, args, kwargs, may_change)
    try:
        return ranks.run(*job, world_size=world_size, timeout_s=timeout_s)
    except ranks.RankFailure as failure:
        if said := next(filter(None, (told_on_a_rank(report.traceback) for report in failure.reports)), ""):
            raise CheckFailed(said) from None
        if any(is_stub(report.traceback) for report in failure.reports):
            fail("a function is not written yet", look="the cell above that says YOUR CODE HERE")
        name = describe(args[0] if fn is _counted else fn)
        fail(f"{name} failed on {world_size} ranks", came=str(failure)[:3000], look=look)


def traffic(
    fn: Callable, *args: Any, world_size: int = 4, timeout_s: float = 50, look: str = "",
    may_change: MayChange = "random", **kwargs: Any,
) -> tuple[list[Any], list[TrafficAccount]]:  # fmt: skip
    """Call like `on_ranks`, and count what each rank sends: (results, accounts), both in rank order."""
    pairs = on_ranks(_counted, fn, args, kwargs, may_change, world_size=world_size, timeout_s=timeout_s, look=look)
    return [result for result, _ in pairs], [account for _, account in pairs]


def crossing(accounts: Sequence[TrafficAccount], here: Collection[int], there: Collection[int]) -> tuple[Bytes, int]:
    """Bytes and messages sent from the ranks `here` to the ranks `there`, by send and isend alone: `only_messages`."""
    links = [(accounts[rank], to) for rank in here for to in there]
    n_bytes = sum((account.bytes_to.get(to, Bytes(0)) for account, to in links), Bytes(0))
    return n_bytes, sum(account.messages_to.get(to, 0) for account, to in links)


def peak(fn: Callable, *args: Any, may_change: MayChange = (), **kwargs: Any) -> HeldBytes:
    """Bytes that a call held at its peak, beyond those held before it (its arguments among them)."""
    with measure.memory(inputs=[*args, *kwargs.values()], lines=True) as record:
        call(fn, *args, may_change=may_change, **kwargs)
    return held(record)


# --- judging what came ----------------------------------------------------------------------------------------------


def that(holds: bool, what: str, *, expected: str = "", came: str = "", look: str = "") -> None:
    """Check a plain statement: `holds` must be the bool True."""
    if holds is not True:
        fail(what, expected=expected, came=came, look=look)
    passed(what)


def equal(got: object, expected: object, what: str, *, look: str = "") -> None:
    """Check for the same type and the same value. Tensors: dtype, shape and every element, NaN equal to NaN."""
    the_same(got, expected, what, look)
    passed(what)


def the_same(got: object, expected: object, what: str, look: str) -> None:
    """Check like `equal`, for each entry of a list, a tuple or a dict too, and print no line."""
    if not _same_type(got, expected):
        fail(what, expected=_kind(expected), came=f"{_kind(got)}: {describe(got)}", look=_TYPE)
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        _tensors_alike(got, expected, what, look)
        wrong = (got != expected) & ~((got != got) & (expected != expected))
        if wrong.any():
            _fail_at(got, expected, wrong, what, look)
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if len(got) != len(expected):
            fail(what, expected=f"{len(expected)} entries", came=f"{len(got)}: {describe(got)}", look=look)
        for number, (one, other) in enumerate(zip(got, expected, strict=True)):
            the_same(one, other, f"{what}, entry {number}", look)
    elif isinstance(expected, dict) and isinstance(got, dict):
        the_same(sorted(map(str, got)), sorted(map(str, expected)), f"{what}: the keys", look)
        for name in expected:
            the_same(got[name], expected[name], f"{what}, {name!r}", look)
    elif got != expected:
        fail(what, expected=describe(expected), came=describe(got), look=look)


def close(
    got: object, expected: Tensor | float, what: str, *, operations: int = 1, dtype: torch.dtype | None = None,
    relative: float | None = None, look: str = "", silent: bool = False,
) -> None:  # fmt: skip
    """Check for equality up to rounding: within `operations` × eps(`dtype`) of the largest expected magnitude.

    Args:
        got: the answer; a tensor must have the expected dtype and shape.
        operations: number of roundings that the answer may differ by (the length of a sum, say).
        dtype: the format that the answer was computed in; default: that of `expected` (float64 for a number).
        relative: a relative tolerance, instead of `operations` and `dtype`.
        look: a place to look at when the check fails, unless the kind or the size of the difference tells one.
        silent: print no line when the check holds.
    """
    if not _same_type(got, expected):
        fail(what, expected=_kind(expected), came=f"{_kind(got)}: {describe(got)}", look=_TYPE)
    exactly = torch.float64 if isinstance(expected, float) else None  # by default a Python float becomes a float32
    target, value = torch.as_tensor(expected, dtype=exactly), torch.as_tensor(got, dtype=exactly)
    if isinstance(expected, Tensor):
        _tensors_alike(value, target, what, look)
    precision = dtype or (target.dtype if isinstance(expected, Tensor) else torch.float64)
    tolerance = relative if relative is not None else operations * torch.finfo(precision).eps
    exact, came = (Tensor.double(Tensor.detach(each)) for each in (target, value))  # no method of the answer's own
    scale = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
    wrong = ~((came - exact).abs() <= tolerance * scale) & ~((came == exact) | (came.isnan() & exact.isnan()))
    if wrong.any():
        told = f"{what} (may be off by {tolerance:.2g} × {scale:.4g})"
        _fail_at(value, target, wrong, told, _size_tells(came[wrong], exact[wrong], scale) or look)
    if not silent:
        passed(what)


def _size_tells(came: Tensor, exact: Tensor, scale: float) -> str:
    """A place to look at if the size of a difference alone tells one; "" if the idea is to be looked at."""
    if (exact.isfinite() & ~came.isfinite()).any():
        return "where it is made: a power or a quotient that is not finite, or memory that nobody has filled"
    if (came - exact).abs().max() <= 64 * torch.finfo(torch.float32).eps * scale:
        return "rounding or an epsilon, for most digits are right: in which format are the numbers on their way?"
    return ""


def at_most(got: Quantity | float, limit: Quantity | float, what: str, *, look: str = "") -> None:
    """Check that a measured quantity is not above its limit."""
    _bounded(got, limit, what, look, at_most=True)


def at_least(got: Quantity | float, limit: Quantity | float, what: str, *, look: str = "") -> None:
    """Check that a measured quantity is not below its limit."""
    _bounded(got, limit, what, look, at_most=False)


def raises(error: type[Exception], fn: Callable, *args: Any, look: str = "", **kwargs: Any) -> None:
    """Check that a call raises this error, and changes nothing before: bad input is refused, not computed with."""
    what, given = f"{call_text(fn, args, kwargs)} raises {error.__name__}", Snapshot(named(fn, args, kwargs))
    try:
        result = fn(*args, **kwargs)
    except error as problem:
        given.compare(_BEHIND.format(describe(fn)), look)
        if not is_stub(problem) or error is NotImplementedError:
            return passed(what)
        fail(f"{describe(fn)} is not written yet", look="the cell above that says YOUR CODE HERE")
    except (Exception, SystemExit) as problem:
        fail(what, expected=error.__name__, came=f"{type(problem).__name__}: {str(problem)[:300]}", look=look)
    return fail(what, expected=error.__name__, came=f"it returned {describe(result)}", look=look)


def only_messages(accounts: Sequence[TrafficAccount], *, look: str = "") -> None:
    """Check that the ranks sent with send and isend alone: no collective of the library has run, by any name, and the
    sockets `carried` nothing else."""
    used = sorted({name for account in accounts for name in account.messages} - {"send"})
    that(not used, "nothing but send, isend, recv and irecv", came=f"also {', '.join(used)}", look=look)
    carried(accounts, look=look)


# --- inside -----------------------------------------------------------------------------------------------------------


def _watched(fn: Callable, args: tuple, kwargs: dict, may_change: MayChange, look: str = "") -> Any:
    with unchanged(_BEHIND.format(describe(fn)), named(fn, args, kwargs), may_change, look):
        return fn(*args, **kwargs)


def _counted(fn: Callable, args: tuple, kwargs: dict, may_change: MayChange) -> tuple[Any, TrafficAccount]:
    with measure.traffic() as account:
        result = _watched(fn, args, kwargs, may_change)
    return result, account


def _same_type(got: object, expected: object) -> bool:
    """Whether the types match exactly, where plain numbers and quantities of the same kind count as one type."""
    got, expected = (Bytes(value) if type(value) in (ModelledBytes, HeldBytes) else value for value in (got, expected))
    if isinstance(expected, bool):
        return type(got) is bool
    if isinstance(expected, int | float):
        kinds = (int, float) if isinstance(expected, float) else (int,)
        own = (type(expected),) if isinstance(expected, Quantity) else _QUANTITIES
        return type(got) in (*kinds, *own)
    if isinstance(expected, Tensor):
        return type(got) in (Tensor, torch.nn.Parameter)
    return type(got) is type(expected)


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"a value of type {type(value).__name__}"


def _tensors_alike(got: Tensor, expected: Tensor, what: str, look: str) -> None:
    if got.dtype != expected.dtype:
        look = "the dtype of what it is made of, and of what is made anew"
        fail(f"{what}: the dtype", expected=str(expected.dtype), came=str(got.dtype), look=look)
    if got.shape != expected.shape:
        fail(f"{what}: the shape", expected=str(tuple(expected.shape)), came=str(tuple(got.shape)), look=look)


def _fail_at(got: Tensor, expected: Tensor, wrong: Tensor, what: str, look: str) -> None:
    """Name the first wrong element."""
    index = tuple(wrong.nonzero()[0].tolist())
    place = f" at {list(index)}" if index else ""
    share = f"{int(wrong.sum())} of {wrong.numel()} elements are off; first{place}: " if wrong.numel() > 1 else ""
    fail(what, expected=f"{expected[index].item()!r}{place}", came=f"{share}{got[index].item()!r}", look=look)


def _bounded(got: Quantity | float, limit: Quantity | float, what: str, look: str, *, at_most: bool) -> None:
    if not _same_type(got, float(limit)):
        fail(what, expected="a number", came=f"{_kind(got)}: {describe(got)}", look=look)
    here, there = float(got), float(limit)
    good = here <= there if at_most else here >= there
    if not good:  # NaN is neither
        fail(what, expected=f"at {'most' if at_most else 'least'} {describe(limit)}", came=describe(got), look=look)
    passed(what)

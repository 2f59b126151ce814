"""Side effects of a call: whether its arguments, and the random state, are as they were before.

An answer whose values are right may still have emptied the caller's list, switched gradients on in the caller's tensor
or left the model in eval mode. A `Snapshot` of a call's arguments, taken before the call, tells afterwards which of
them have changed, and how.

A snapshot copies nothing: it keeps *fingerprints*, of a container its entries, of a tensor a checksum of its bytes. No
tensor operation runs, so a snapshot works inside every meter, and costs microseconds where tensors are small.
"""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import random
import struct
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_kit.checks.failed import describe, fail

ASPECTS = ("entries", "values", "requires_grad", "grad", "mode", "hooks", "random", "settings")
"""Ways to change a thing. "settings" are PyTorch's own: whether gradients are on, and the default dtype."""

MayChange = str | Collection[Any]
"""The changes that a call may make: one of the `ASPECTS`, or several of them and of the call's arguments."""

LARGE_BYTES = 2**24
"""The checksum of a larger tensor reads every so many pages of 4 KiB; its version counts, too."""

_SEED = 0x5EED_0DD
_TWISTER = struct.Struct("625I")
"""The state of a Mersenne twister: 624 words, and the number of the next one."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype)


class Snapshot:
    """The arguments of a call, as they were before it.

    Args:
        things: name → argument.
        may_change: the changes that the contract allows: an aspect ("grad": of any argument), or an argument with all
            of its parts (`[optimizer, "random"]`).
    """

    def __init__(self, things: Mapping[str, Any], may_change: MayChange = ()) -> None:
        self._aspects, self._things = _aspects(may_change), things
        self._free = {id(each): each for each in may_change if not isinstance(each, str)}
        self._before = self._fingerprints()

    def changes(self) -> list[str]:
        """The changes since then in words, the outermost first: ["`plan` had 5 entries, now 3"]."""
        after, found = self._fingerprints(), []
        for key, was in self._before.items():
            now = after.get(key)
            if now is not None and now.value != was.value:  # what is gone is gone with the entry that held it
                found.append(_in_words(was, now))
        return found

    def compare(self, what: str, look: str = "") -> None:
        """Raise a `CheckFailed` if something has changed."""
        if changes := self.changes():
            more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
            fail(what, expected="all of it as it was before", came="; ".join(changes[:3]) + more, look=look)

    def _fingerprints(self) -> dict[tuple[str, str], Fingerprint]:
        seen = dict(self._free)  # as if they had been looked at already
        given = (each for name, thing in self._things.items() for each in fingerprints(name, thing, seen))
        found = (*global_state(), *given)
        return {(each.path, each.aspect): each for each in found if each.aspect not in self._aspects}


def _aspects(may_change: MayChange) -> set[str]:
    """The aspects among what may change."""
    named = {may_change} if isinstance(may_change, str) else {each for each in may_change if isinstance(each, str)}
    if unknown := named - set(ASPECTS):
        raise ValueError(f"may_change={may_change!r}: {unknown} is none of {', '.join(ASPECTS)}, nor a thing given")
    return named


@contextmanager
def unchanged(what: str, things: Mapping[str, Any], may_change: MayChange = (), look: str = "") -> Iterator[None]:
    """Raise a `CheckFailed` if the block leaves anything of `things` changed but `may_change`.

    with check.unchanged("after add", {"model": model}, may_change="grad"):
        check.call(total.add, inputs, targets)  # the object has the model, the call has not
    """
    with nullcontext() if "random" in _aspects(may_change) else _other_random_states():
        given = Snapshot(things, may_change)
        yield
        given.compare(what, look)


@contextmanager
def _other_random_states() -> Iterator[None]:
    """Set other random states while the block runs: a seed that is set to what it was would else leave no trace."""
    dice, (version, numbers, gauss) = torch.default_generator.get_state(), random.getstate()
    packed = _TWISTER.pack(*numbers)  # 2.5 KB: blocks of 4 KiB or more count where memory is measured
    del numbers
    torch.default_generator.manual_seed(_SEED)
    random.seed(_SEED)
    try:
        yield
    finally:
        torch.default_generator.set_state(dice)
        random.setstate((version, _TWISTER.unpack(packed), gauss))


def named(fn: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a call by the names that the function has for them; those of `*args` with their number."""
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call does not fit, or has no signature: the call itself will say so
        return {**{f"argument {number}": arg for number, arg in enumerate(args, 1)}, **kwargs}
    return dict(bound)


# --- fingerprints ---------------------------------------------------------------------------------------------------


class Fingerprint(NamedTuple):
    """One aspect of one thing, to be compared before and after a call.

    Attributes:
        path: the thing's place, as one would write it: "layers[2].weight".
        aspect: one of the `ASPECTS`.
        value: compared with `==`.
        words: the value as a message says it.
    """

    path: str
    aspect: str
    value: Any
    words: str


def fingerprints(path: str, thing: Any, seen: dict[int, Any]) -> Iterator[Fingerprint]:
    """The fingerprints of a thing and of its parts; each object once (`seen`), by the first way to it."""
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        yield from _of_tensor(path, thing)
    elif isinstance(thing, torch.Generator):
        yield Fingerprint(path, "random", _checksum(thing.get_state()), "")
    elif type(thing).__module__ == "numpy" and hasattr(thing, "tobytes"):
        yield Fingerprint(path, "values", zlib.crc32(thing.tobytes()), "")
    else:
        if isinstance(thing, nn.Module):
            yield Fingerprint(path, "mode", thing.training, "in training mode" if thing.training else "in eval mode")
            hooks = sum(len(getattr(thing, kind, ())) for kind in _HOOKS)
            yield Fingerprint(path, "hooks", hooks, _count(hooks, "hook", "hooks"))
        if (parts := _parts(path, thing)) is not None:
            entries = _Entries(parts, ordered=not isinstance(thing, set))
            yield Fingerprint(path, "entries", entries, _count(len(parts), "entry", "entries"))
            for inner, part in parts.items():
                yield from fingerprints(inner, part, seen)


def _parts(path: str, thing: Any) -> dict[str, Any] | None:
    """The parts of a thing by their paths; None for a thing that is not looked into."""
    if isinstance(thing, list | tuple | deque | set):
        return {f"{path}[{number}]": part for number, part in enumerate(thing)}
    if isinstance(thing, Mapping):
        keys = (repr(key) if isinstance(key, _PLAIN) else f"key {number}" for number, key in enumerate(thing))
        return {f"{path}[{key}]": part for key, part in zip(keys, thing.values(), strict=True)}
    if isinstance(thing, nn.Module):
        patched = {name: part for name, part in vars(thing).items() if name == "forward"}  # instead of the class's own
        owned = {**thing._parameters, **thing._buffers, **thing._modules, **patched}
        return {f"{path}.{name}": part for name, part in owned.items()}
    if isinstance(thing, torch.optim.Optimizer):
        return {f"{path}.param_groups": thing.param_groups, f"{path}.state": thing.state}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type) or isinstance(thing, SimpleNamespace):
        return {f"{path}.{name}": part for name, part in getattr(thing, "__dict__", {}).items()}
    return None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class _Entries:
    """The objects that a container holds, and their order. They themselves are not kept: a call may let go of them."""

    def __init__(self, parts: Mapping[str, Any], *, ordered: bool) -> None:
        self._identities, self._ordered = {path: _identity(part) for path, part in parts.items()}, ordered
        self._words = {path: describe(part) for path, part in parts.items() if isinstance(part, _PLAIN)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Entries):
            return NotImplemented
        if self._ordered:
            return list(self._identities.items()) == list(other._identities.items())
        return self._members == other._members

    __hash__ = None  # type: ignore[assignment]

    @property
    def _members(self) -> list[str]:
        """The entries without their order."""
        return sorted(map(str, self._identities.values()))

    def difference(self, now: _Entries) -> str:
        """The first entry that differs, in words, for a container that is as long as before."""
        if self._members == now._members and self._identities.keys() == now._identities.keys():
            return "its entries stand in another order"
        path = next(path for path, which in self._identities.items() if now._identities.get(path) != which)
        if path not in now._identities:
            return f"{path} is gone"
        told = path in self._words and path in now._words
        return f"{path} was {self._words[path]}, now {now._words[path]}" if told else f"{path} is another object"


def _identity(part: Any) -> Any:
    """The value of an entry if that cannot change, else its address: equal for the same entry."""
    return (type(part).__name__, repr(part)) if isinstance(part, _PLAIN) else id(part)


def _of_tensor(path: str, tensor: Tensor) -> Iterator[Fingerprint]:
    yield Fingerprint(path, "values", (tensor.dtype, tensor.shape, _checksum(tensor)), _shape(tensor))
    yield Fingerprint(path, "requires_grad", tensor.requires_grad, str(tensor.requires_grad))
    yield Fingerprint(path, "hooks", hooks := len(tensor._backward_hooks or ()), _count(hooks, "hook", "hooks"))
    if tensor.is_leaf:  # PyTorch warns whoever asks for the gradient of another tensor
        grad = tensor.grad
        yield Fingerprint(
            path, "grad", None if grad is None else _checksum(grad), "none" if grad is None else _shape(grad)
        )


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def global_state() -> Iterator[Fingerprint]:
    """The fingerprints of what is nobody's argument: random states, and PyTorch's settings."""
    yield Fingerprint("torch's random state", "random", _checksum(torch.default_generator.get_state()), "")
    yield Fingerprint("Python's random state", "random", hash(random.getstate()), "")
    if numpy := sys.modules.get("numpy"):
        yield Fingerprint("NumPy's random state", "random", _numpy_dice(numpy.random), "")
    yield Fingerprint("torch.is_grad_enabled()", "settings", on := torch.is_grad_enabled(), str(on))
    yield Fingerprint("torch.get_default_dtype()", "settings", dtype := torch.get_default_dtype(), str(dtype))


def _numpy_dice(dice: Any) -> Any:
    """NumPy's random state as a number; `get_state` would make objects of all its words, and take 30 µs."""
    generator = dice.get_bit_generator()
    if type(generator) is not dice.MT19937:  # somebody has set another one
        return repr(generator.state)
    return zlib.crc32((ctypes.c_char * _TWISTER.size).from_address(generator.ctypes.state_address))


def _checksum(tensor: Tensor) -> Any:
    """A number that changes with any element, read from memory without a tensor operation."""
    if tensor.is_sparse or tensor.device.type != "cpu" or not tensor.numel():
        return _version(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a tensor without memory of its own
        address = 0
    if not address:
        return _version(tensor)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = memoryview((ctypes.c_char * (span * tensor.itemsize)).from_address(address)).cast("B")
    if len(memory) <= LARGE_BYTES:
        return zlib.crc32(memory)
    pages = range(0, len(memory), len(memory) // (LARGE_BYTES // 4096))
    return _version(tensor), [zlib.crc32(memory[start : start + 4096]) for start in pages]


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to in place."""
    return 0 if tensor.is_inference() else tensor._version


def _in_words(was: Fingerprint, now: Fingerprint) -> str:
    """The change from one fingerprint to the other, in words."""
    path = was.path if was.aspect in ("random", "settings") and " " in was.path else f"`{was.path}`"
    match was.aspect:
        case "random":
            return f"{path} is another one: random numbers were drawn, or it was seeded"
        case "entries" if was.words == now.words:
            return f"{path}: {was.value.difference(now.value)}"
        case "entries" | "hooks":
            return f"{path} had {was.words}, now {now.words}"
        case "values" | "grad":
            name = f"`{was.path}.grad`" if was.aspect == "grad" else path
            return f"{name} was {was.words}, now {now.words}" if was.words != now.words else f"{name} has other values"
        case "requires_grad":
            return f"`{was.path}.requires_grad` was {was.words}, now {now.words}"
    return f"{path} was {was.words}, now {now.words}"

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
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_kit.checks.failed import LONGEST, fail

ASPECTS = ("entries", "values", "requires_grad", "grad", "mode", "hooks", "random", "settings")
"""Ways to change a thing. "settings" are PyTorch's own: whether gradients are on, and the default dtype."""

MayChange = str | Collection[Any]
"""The changes that a call may make: one of the `ASPECTS`, or several of them and of the call's arguments."""

LARGE_BYTES = 2**24
"""The checksum of a larger tensor reads some 4,096 pages of 4 KiB, evenly spread; the tensor's version counts, too."""

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
        """The changes since the snapshot in words, the outermost first: ["`plan` had 5 entries, now 3"]."""
        after = self._fingerprints()  # a thing that is gone is told with the entry that held it
        changed = (key for key, was in self._before.items() if key in after and after[key] != was)
        return [_in_words(*key, self._before[key], after[key]) for key in changed]

    def compare(self, what: str, look: str = "") -> None:
        """Raise a `CheckFailed` if something has changed."""
        if changes := self.changes():
            more = f"; and {len(changes) - 3} more" if len(changes) > 3 else ""
            fail(what, expected="all of it as it was before", came="; ".join(changes[:3]) + more, look=look)

    def _fingerprints(self) -> Fingerprints:
        seen = dict(self._free)  # as if they had been looked at already
        found: Fingerprints = {}
        global_state(found, self._aspects)
        for name, thing in self._things.items():
            fingerprints(name, thing, seen, found)
        return {key: value for key, value in found.items() if key[1] not in self._aspects}


def _aspects(may_change: MayChange) -> set[str]:
    """The aspects among the allowed changes."""
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
    """Set other random states while the block runs: the same seed, set once more, would else leave no trace."""
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


Fingerprints = dict[tuple[str, str], Any]
"""(The path of a thing, such as "layers[2].weight"; one of the `ASPECTS`) → a value to compare with `==`."""


def fingerprints(path: str, thing: Any, seen: dict[int, Any], found: Fingerprints) -> None:
    """Add the fingerprints of a thing and of its parts; each object once (`seen`), by the first way to it."""
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        _of_tensor(path, thing, found)
    elif isinstance(thing, torch.Generator):
        found[path, "random"] = _checksum(thing.get_state())
    elif type(thing).__module__ == "numpy" and hasattr(thing, "tobytes"):
        found[path, "values"] = zlib.crc32(thing.tobytes())
    else:
        if isinstance(thing, nn.Module):
            found[path, "mode"] = thing.training
            found[path, "hooks"] = sum(len(getattr(thing, kind, ())) for kind in _HOOKS)
        if (parts := _parts(path, thing)) is not None:
            found[path, "entries"] = [(inner, _identity(part)) for inner, part in parts.items()]
            for inner, part in parts.items():
                fingerprints(inner, part, seen, found)


def _parts(path: str, thing: Any) -> dict[str, Any] | None:
    """The parts of a thing by their paths; None for a thing that is not looked into."""
    if isinstance(thing, list | tuple | deque | set):
        ordered = sorted(thing, key=lambda part: str(_identity(part))) if isinstance(thing, set) else thing
        return {f"{path}[{number}]": part for number, part in enumerate(ordered)}
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


def _identity(part: Any) -> tuple[str, str] | int:
    """Type and text of an immutable entry, else its address: the entry itself is not kept, a call may let go of it."""
    return (type(part).__name__, repr(part)) if isinstance(part, _PLAIN) else id(part)


def _first_difference(was: list[tuple[str, Any]], now: list[tuple[str, Any]]) -> str:
    """The first entry that differs, in words, for a container that is as long as before."""
    before, after = dict(was), dict(now)
    if before.keys() == after.keys() and Counter(before.values()) == Counter(after.values()):
        return "its entries stand in another order"
    path = next(path for path, which in was if after.get(path) != which)
    if path not in after:
        return f"{path} is gone"
    if isinstance(before[path], tuple) and isinstance(after[path], tuple):
        return f"{path} was {before[path][1][:LONGEST]}, now {after[path][1][:LONGEST]}"
    return f"{path} is another object"


def _of_tensor(path: str, tensor: Tensor, found: Fingerprints) -> None:
    found[path, "values"] = tensor.dtype, tensor.shape, _checksum(tensor)
    found[path, "requires_grad"] = tensor.requires_grad
    found[path, "hooks"] = len(tensor._backward_hooks or ())
    if tensor.is_leaf:  # PyTorch warns of reading the gradient of another tensor
        grad = tensor.grad
        found[path, "grad"] = None if grad is None else (grad.dtype, grad.shape, _checksum(grad))


def global_state(found: Fingerprints, without: Collection[str] = ()) -> None:
    """Add the fingerprints of state that is no argument: random states, and PyTorch's settings."""
    if "random" not in without:
        found["torch's random state", "random"] = _checksum(torch.default_generator.get_state())
        found["Python's random state", "random"] = hash(random.getstate())
        if numpy := sys.modules.get("numpy"):
            found["NumPy's random state", "random"] = _numpy_dice(numpy.random)
    found["torch.is_grad_enabled()", "settings"] = torch.is_grad_enabled()
    found["torch.get_default_dtype()", "settings"] = torch.get_default_dtype()


def _numpy_dice(dice: Any) -> Any:
    """The fingerprint of NumPy's random state; `get_state` would make objects of all its words, and take 30 µs."""
    generator = dice.get_bit_generator()
    if type(generator) is not dice.MT19937:  # another generator has been set
        return repr(generator.state)
    return zlib.crc32((ctypes.c_char * _TWISTER.size).from_address(generator.ctypes.state_address))


def _checksum(tensor: Tensor) -> Any:
    """A value that changes with any element, read from memory without a tensor operation."""
    version = 0 if tensor.is_inference() else tensor._version  # the number of writes in place
    try:
        address = tensor.data_ptr() if tensor.device.type == "cpu" and tensor.numel() else 0
    except RuntimeError:  # a sparse tensor, or another one without memory of its own
        address = 0
    if not address:
        return version
    span = tensor.numel()
    if not tensor.is_contiguous():
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_char * (span * tensor.itemsize)).from_address(address)
    if len(memory) <= LARGE_BYTES:
        return zlib.crc32(memory)
    pages, view = range(0, len(memory), len(memory) // (LARGE_BYTES // 4096)), memoryview(memory)
    return version, [zlib.crc32(view[start : start + 4096]) for start in pages]


def _in_words(path: str, aspect: str, was: Any, now: Any) -> str:
    """The change from one fingerprint to the other, in words."""
    name = path if aspect in ("random", "settings") and " " in path else f"`{path}`"
    match aspect:
        case "random":
            return f"{name} is another one: random numbers were drawn, or it was seeded"
        case "entries" if len(was) == len(now):
            return f"{name}: {_first_difference(was, now)}"
        case "entries":
            return f"{name} had {_count(len(was), 'entry', 'entries')}, now {_count(len(now), 'entry', 'entries')}"
        case "hooks":
            return f"{name} had {_count(was, 'hook', 'hooks')}, now {_count(now, 'hook', 'hooks')}"
        case "values" | "grad":
            name = f"`{path}.grad`" if aspect == "grad" else name
            before, after = _shape(was), _shape(now)
            return f"{name} was {before}, now {after}" if before != after else f"{name} has other values"
        case "requires_grad":
            return f"`{path}.requires_grad` was {was}, now {now}"
        case "mode":
            return f"{name} was in {'training' if was else 'eval'} mode, now in {'training' if now else 'eval'} mode"
    return f"{name} was {was}, now {now}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _shape(values: Any) -> str:
    """The dtype and shape of a tensor's fingerprint; "" for an array's, "none" for no gradient."""
    if not isinstance(values, tuple):
        return "none" if values is None else ""
    dtype, shape, _ = values
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"

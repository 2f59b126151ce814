"""Facts about a thing that can be compared before and after a call, and how a change of one is said.

Containers are remembered by their entries, tensors by a checksum of their bytes. Nothing is copied, and no tensor
operation runs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_kit.checks.failed import describe

LARGE_BYTES = 2**24
"""Of a larger tensor the checksum reads every so many pages of 4 KiB, and its version counts, too."""

_TWISTER_BYTES = 625 * 4
"""Of a Mersenne twister: 624 words, and which of them is next."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype)


class Fact(NamedTuple):
    """One thing that can be compared before and after.

    Attributes:
        path: where it stands, as one would write it: "layers[2].weight".
        aspect: what of it, one of `left_behind.ASPECTS`.
        value: compared with `==`.
        words: the value as a message says it.
    """

    path: str
    aspect: str
    value: Any
    words: str


def facts(path: str, thing: Any, seen: dict[int, Any]) -> Iterator[Fact]:
    """All facts of a thing and of what it consists of; each object once (`seen`), by the first way to it."""
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        yield from _tensor_facts(path, thing)
    elif isinstance(thing, torch.Generator):
        yield Fact(path, "random", _checksum(thing.get_state()), "")
    elif type(thing).__module__ == "numpy" and hasattr(thing, "tobytes"):
        yield Fact(path, "values", zlib.crc32(thing.tobytes()), "")
    else:
        if isinstance(thing, nn.Module):
            yield Fact(path, "mode", thing.training, "in training mode" if thing.training else "in eval mode")
            yield Fact(path, "hooks", hooks := _hooks(thing), _count(hooks, "hook", "hooks"))
        if (parts := _parts(path, thing)) is not None:
            yield Fact(
                path,
                "entries",
                _Entries(parts, ordered=not isinstance(thing, set)),
                _count(len(parts), "entry", "entries"),
            )
            for inner, part in parts.items():
                yield from facts(inner, part, seen)


def _parts(path: str, thing: Any) -> dict[str, Any] | None:
    """What a thing consists of, by the path to it; None for what is not looked into."""
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


def _hooks(module: nn.Module) -> int:
    return sum(len(getattr(module, kind, ())) for kind in _HOOKS)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class _Entries:
    """Which objects a container holds, in which order. It keeps none of them: what the call lets go of may go."""

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
        """What is not as it was, for a container that is as long as it was."""
        if self._members == now._members and self._identities.keys() == now._identities.keys():
            return "its entries stand in another order"
        path = next(path for path, which in self._identities.items() if now._identities.get(path) != which)
        if path not in now._identities:
            return f"{path} is gone"
        told = path in self._words and path in now._words
        return f"{path} was {self._words[path]}, now {now._words[path]}" if told else f"{path} is another object"


def _identity(part: Any) -> Any:
    """What makes an entry the same one: its value if that cannot change, else which object it is."""
    return (type(part).__name__, repr(part)) if isinstance(part, _PLAIN) else id(part)


def _tensor_facts(path: str, tensor: Tensor) -> Iterator[Fact]:
    yield Fact(path, "values", (tensor.dtype, tensor.shape, _checksum(tensor)), _shape(tensor))
    yield Fact(path, "requires_grad", tensor.requires_grad, str(tensor.requires_grad))
    yield Fact(path, "hooks", hooks := len(tensor._backward_hooks or ()), _count(hooks, "hook", "hooks"))
    if tensor.is_leaf:  # of what an operation made, PyTorch warns that it has none
        grad = tensor.grad
        yield Fact(path, "grad", None if grad is None else _checksum(grad), "none" if grad is None else _shape(grad))


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def surroundings() -> Iterator[Fact]:
    """What is nobody's argument: the random state, and how PyTorch is set."""
    yield Fact("torch's random state", "random", _checksum(torch.default_generator.get_state()), "")
    yield Fact("Python's random state", "random", hash(random.getstate()), "")
    if numpy := sys.modules.get("numpy"):
        yield Fact("NumPy's random state", "random", _numpy_dice(numpy.random), "")
    yield Fact("torch.is_grad_enabled()", "settings", on := torch.is_grad_enabled(), str(on))
    yield Fact("torch.get_default_dtype()", "settings", dtype := torch.get_default_dtype(), str(dtype))


def _numpy_dice(dice: Any) -> Any:
    """NumPy's random state as a number; `get_state` would make objects of all its words, and take 30 µs."""
    generator = dice.get_bit_generator()
    if type(generator) is not dice.MT19937:  # somebody has set another one
        return repr(generator.state)
    return zlib.crc32((ctypes.c_char * _TWISTER_BYTES).from_address(generator.ctypes.state_address))


def _checksum(tensor: Tensor) -> Any:
    """A number that is another one when an element is; read from memory, without a tensor operation."""
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
    """How often something was written into it in place."""
    return 0 if tensor.is_inference() else tensor._version


def told(was: Fact, now: Fact) -> str:
    """One change in words."""
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

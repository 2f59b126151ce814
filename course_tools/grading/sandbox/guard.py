"""Runs inside the untrusted kernel, in front of and behind each check: restores names, and notices crude tampering.

A check that an answer could silence would be worthless, and in Python an answer can reach everything in its process.
This module does three things:

- Names that the lab's own cells bound (`check`, a reference function, an input) are bound to the same objects again
  before each check, so a variable of a student that happens to be called `check` does no harm.
- Functions of the course, of torch's comparisons and the builtins that checks rely on must be those that were there
  before any answer ran; the shell must not rewrite the source of cells.
- A check counts as passed only when its cell gets to its last line, an assert that fails with a number made up for
  this one run. A shell that drops asserts, or says "ok" to everything, fails this.

No guard stops a student who reads this file. An answer can find the number in the source of the running cell,
replace this module, or patch something that is not looked at, in the kernel or in the ranks. No check that shares a
process with the code that it checks can be made proof against that. The sandbox contains the damage; at stake are
one student's points for one lab, and the notebook that earned them is on the instructor's disk to be read.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from course_tools import TAUGHT

WATCHED_PACKAGES = (
    "course_kit.checks",
    "course_kit.measure",
    "course_kit.ranks",
    "course_kit.accounts",
    "course_kit.units",
)
TORCH_FUNCTIONS = ("as_tensor", "equal", "allclose", "isclose", "isfinite", "isnan", "all", "any", "tensor", "finfo")
SHELLS = (
    ("IPython.core.interactiveshell", "InteractiveShell"),
    ("ipykernel.zmqshell", "ZMQInteractiveShell"),
    ("ipykernel.ipkernel", "IPythonKernel"),
)
OPEN_BUILTINS = {"print", "display", "input", "open", "exit", "quit", "help", "get_ipython", "breakpoint", "_"}
"""Builtins that a student may replace without harm, and those that shells replace."""


class Tampered(Exception):
    """Something that checks rely on was replaced."""


class Guard:
    """The objects that were there before any answer ran. Made once, by the first cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._given: dict[str, Any] = {}
        self._parts = dict(_parts())
        self._rewriting = self._transformers()
        self._classes = {name: set(vars(part)) for name, part in self._parts.items() if _is_ours(part)}

    def given(self, names: list[str]) -> None:
        """Remember the objects of these names, which the lab's own cell has just bound."""
        space = self._shell.user_ns
        self._given.update({name: space[name] for name in names if name in space})

    def restore(self) -> None:
        """Bind the given names to the given objects again."""
        self._shell.user_ns.update(self._given)

    def sound(self, number: str) -> bool:
        """Return True if nothing that checks rely on was replaced.

        Raises:
            Tampered: something was; the text starts with `number`.
        """
        changed = [name for name, part in self._parts.items() if _now(name) is not part]
        changed += [f"{name}.{added}" for name, known in self._classes.items() for added in _added(_now(name), known)]
        if _ids(self._transformers()) != _ids(self._rewriting):
            changed.append("the source of cells before they run")
        if changed:
            raise Tampered(f"{number} {', '.join(changed[:5])}")
        return True

    def _transformers(self) -> list[object]:
        manager = self._shell.input_transformer_manager
        lists = (manager.cleanup_transforms, manager.line_transforms, manager.token_transformers)
        posts = (self._shell.input_transformers_post, self._shell.ast_transformers)
        own = [value for name, value in vars(self._shell).items() if callable(value) and name != "CustomTB"]
        return [item for part in (*lists, *posts, own) for item in part]


def _ids(things: list[object]) -> list[int]:
    """The identities of objects; unlike `==`, which an object may answer as it likes."""
    return [id(thing) for thing in things]


def _is_ours(part: object) -> bool:
    return isinstance(part, type) and part.__module__.startswith(TAUGHT)


def _added(part: object, known: set[str]) -> list[str]:
    """Methods that a class has got since."""
    members = vars(part).items() if isinstance(part, type) else ()
    return [name for name, member in members if name not in known and isinstance(member, FunctionType)]


def _parts() -> Iterator[tuple[str, object]]:
    """Everything that must stay as it is, by a name under which `_now` finds it."""
    for module_name in list(sys.modules):
        if module_name.startswith(WATCHED_PACKAGES):
            for name, value in list(vars(sys.modules[module_name]).items()):
                if isinstance(value, FunctionType | type) and not name.startswith("__"):
                    yield from _with_insides(f"{module_name}:{name}", value)
    for module_name, name in SHELLS:
        if module_name in sys.modules:
            yield from _with_insides(f"{module_name}:{name}", getattr(sys.modules[module_name], name))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        for name in TORCH_FUNCTIONS:
            yield f"torch:{name}", getattr(torch, name, None)
        for name in list(vars(torch.Tensor)):
            yield f"torch:Tensor.{name}", vars(torch.Tensor)[name]
    for name, value in vars(builtins).items():
        if callable(value) and name not in OPEN_BUILTINS:
            yield f"builtins:{name}", value


def _with_insides(name: str, value: FunctionType | type) -> Iterator[tuple[str, object]]:
    yield name, value
    if isinstance(value, FunctionType):
        yield f"{name}.__code__", value.__code__
        return
    if not value.__module__.startswith((*TAUGHT, "IPython", "ipykernel")):
        return
    for inner, part in list(vars(value).items()):
        if callable(part) or isinstance(part, property | classmethod | staticmethod):
            yield f"{name}.{inner}", part
            if isinstance(part, FunctionType):
                yield f"{name}.{inner}.__code__", part.__code__


def _now(name: str) -> object:
    module, _, path = name.partition(":")
    thing: Any = sys.modules.get(module)
    for part in path.split("."):
        thing = vars(thing).get(part) if isinstance(thing, type) else getattr(thing, part, None)
    return thing


_GUARDS: list[Guard] = []


def start(shell: Any) -> None:
    """Remember the state of this process; called by the grader's first cell."""
    _GUARDS.append(Guard(shell))


def the_guard() -> Guard:
    """The guard of this kernel."""
    return _GUARDS[0]

"""Which arguments of its answers a lab's hidden checks vary: every call that a check makes is noted, on ranks too.

A vocabulary of 1,000 in every check lets an answer pass that has read the 1,000 and not the argument. So each function
and method of an answer begins, while the solution is run, with a note of what it was given; calls from other answers
do not count, for another answer need not make them. A tensor has a dtype and a shape, a record its fields, a list its
length and its entries: each of these is held against those of the public checks.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .habits import Met, new_life, signs

ANSWER = "<answer "
"""What the file names of answer cells begin with."""

_DTYPE = "the contract names one dtype"
_VALUES = "the contract names all its values, and public checks have them"
_MADE = "the answer made it, in a form of its own"
_RECORD = "a record with the same names everywhere"
_DRAWN = "clusters are drawn: public ones have all that occur"

FIXED = {
    "lab01": {"*: x.dtype": _DTYPE, "*: scales.dtype": _DTYPE, "*: pa*.dtype": _DTYPE, "*: bits": _VALUES},
    "lab02": {"activations: element_bytes": _VALUES},
    "lab04": {
        "split: w.dtype": _DTYPE,
        "join: *.dtype": _DTYPE,
        "lean_step: parameters[[]].dtype": _DTYPE,
        "train: net.dtypes": _DTYPE,
    },
    "lab05": {"*.add: *puts.dtype": _DTYPE, "*.add: targets.dtype": _DTYPE, "*.load_state_dict: state.keys()": _MADE},
    "lab06": {"reduce_scatter: members[[]]": "the ranks that a checked call may start: all eight occur"},
    "lab07": {"*code: *.dtype": _DTYPE, "compressed_mean: *.dtype": _DTYPE},
    "lab08": {
        "*: tokens.dtype": _DTYPE,
        "*: targets.dtype": _DTYPE,
        "*.backward: grad.shape": "the loss is one number",
    },
    "lab09": {"*_gradient: kept*": _MADE},
    "lab10": {"update: shard.keys()": _RECORD, "save: shard.keys()": _RECORD},
    "lab12": {"*: cube.*.keys()": _RECORD, "mean_loss: targets.dtype": _DTYPE},
    "lab14": {"*: sizes.len": "a pair, the smallest and the largest"},
    "lab15": {
        "*: weights.len": "a mixture of two sources",
        "Loader.__init__: sources.len": "a mixture of two sources",
        "Loader.batches: state": _MADE,
        "may_attend: documents.dtype": _DTYPE,
    },
    "lab17": {
        **dict.fromkeys(["*: layout.zero", "*: layout.recompute"], _VALUES),
        **{f"plan: run.{of}": _DRAWN for of in ("heads", "experts", "top_k")},
        **{f"plan: cluster.{of}": _DRAWN for of in ("gpus", "sparse_peak", "node")},
        "plan: probe": "a function of the clusters",
    },
}
"""What no hidden check can vary, as patterns of `Varied.constant`, and why."""

_OWN = {"self", "cls", "ctx", "__class__"}
_DEEPEST = 3
MOST = 16
"""Kinds of calls that a note remembers: some checks allow an answer a few KiB for hundreds of calls."""


@dataclasses.dataclass
class Note:
    """What an answer's functions call first: a line of a file for each call, which ranks write, too.

    Of calls that differ in their tensors' values alone, the first two with different ones: a file that grew with every
    micro-batch would count among the bytes that an answer holds in files.
    """

    file: str

    def __post_init__(self) -> None:
        self.life = new_life()
        self.noted: dict[int, set[int]] = defaultdict(set)  # hashes, since texts would be bytes that the answer holds

    def __reduce__(self) -> Any:
        """Each run on ranks has copies of the answers, and a life of its own."""
        return Note, (self.file,)

    def __call__(self, name: str, given: dict[str, Any]) -> None:
        """Note what a function was given, unless another answer calls it."""
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(ANSWER):
                return
            frame = frame.f_back
        given = {key: value for key, value in given.items() if key not in _OWN}
        shown = signs(name, given, self.life, sys._getframe(2))
        facts = [fact for key, value in given.items() for fact in _facts(key, value)]
        values, these = self.noted[hash(json.dumps([name, facts, {**shown, "values": ""}]))], hash(shown["values"])
        if these in values or len(values) > 1:
            return
        values.add(these)
        if len(self.noted) > MOST:
            del self.noted[next(iter(self.noted))]
        with open(self.file, "a") as file:
            file.write(json.dumps([name, facts, shown]) + "\n")


class Varied:
    """What public and hidden checks give to each argument of each answer, for `run_lab` to fill.

    Args:
        file: where ranks leave their notes.
    """

    NAME = "_note_of_a_call"

    def __init__(self, file: Path) -> None:
        self.note = Note(str(file))
        self._seen: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
        self._open: set[str] = set()
        self.met = Met()

    def after(self, check: str, hidden: bool) -> None:
        """Take the notes since the last time, which belong to this check; to none, if it is empty."""
        path = Path(self.note.file)
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        self.note.noted.clear()  # the next check is told anew
        for name, facts, shown in map(json.loads, lines if check else ()):
            self.met.add(name, shown)
            for where, value, is_open in facts:
                self._seen[f"{name}: {where}"][hidden].add(value)
                self._open |= {f"{name}: {where}"} if is_open else set()

    def constant(self) -> dict[str, list[str]]:
        """Each argument that no hidden check varies, with what all of them give it.

        Of numbers, shapes and lists a hidden check must have one that no public check has; of what has few values (a
        switch, a word, a dtype) all checks together must have two.
        """
        found = {}
        for name, (public, hidden) in self._seen.items():
            too_few = not hidden - public if name in self._open else len(public | hidden) < 2
            or_none = public | hidden == {"None"} and any(
                other.startswith((f"{name}.", f"{name}[")) for other in self._seen
            )
            if too_few and not or_none:
                found[name] = sorted(public | hidden)
        return found


def with_notes(source: str) -> ast.Module:
    """An answer cell in which each function of the contract, not those inside a solution, begins with a note."""
    tree, lines = ast.parse(source), source.splitlines()
    marks = {number: line.split()[1] for number, line in enumerate(lines, 1) if line.strip().endswith(" SOLUTION")}
    for function, node in _functions(tree.body):
        above = [number for number in marks if number < node.lineno]
        if above and marks[max(above)] == "BEGIN":
            continue
        told = ast.get_docstring(node) is not None
        note = ast.parse(f"{Varied.NAME}({function!r}, locals())").body[0]
        for part in ast.walk(note):
            ast.copy_location(part, node.body[0])
        node.body.insert(int(told), note)
    return tree


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of a cell, and the methods of its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{node.name}.")


def _facts(where: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str, bool]]:
    """(what of an argument, as text, whether any number of others would do). No operation of PyTorch is run here."""
    fields = _fields(value)
    if isinstance(value, Tensor):
        yield f"{where}.dtype", str(value.dtype), False
        yield f"{where}.shape", str(tuple(value.shape)), True
    elif isinstance(value, nn.Module) and not isinstance(value, nn.ModuleList):
        parameters = list(value.parameters())
        yield f"{where}.parameters", str([tuple(each.shape) for each in parameters]), True
        yield f"{where}.dtypes", str(sorted({str(each.dtype) for each in parameters})), False
    elif isinstance(value, list | tuple | dict | set | nn.ModuleList) and not fields:
        if isinstance(value, dict):
            yield f"{where}.keys()", str(sorted(map(str, value))), False
        elif depth == 0 or not isinstance(value, tuple):  # in a list of pairs, each has two
            yield f"{where}.len", str(len(value)), True
        for each in (value.values() if isinstance(value, dict) else value) if depth < _DEEPEST else ():
            yield from _facts(f"{where}[]", each, depth + 1)
    elif fields and depth < _DEEPEST:
        for name, each in fields.items():
            yield from _facts(f"{where}.{name}", each, depth + 1)
    elif isinstance(value, int | float | range | Path) and not isinstance(value, bool):
        yield where, repr(value), True
    else:
        plain = value is None or isinstance(value, str | bool | torch.dtype | type)
        yield where, repr(value)[:80] if plain else getattr(value, "__qualname__", type(value).__name__), False


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, type | int | float):
        return {}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value))  # type: ignore[attr-defined]
    return {}

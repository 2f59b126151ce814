"""Run a lab's cells in this process, with answers of one's own: much faster than a kernel, the same checks."""

from __future__ import annotations

import _thread
import ast
import contextlib
import copy
import functools
import io
import itertools
import linecache
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from course_kit.checks import isolated_cell
from course_tools.author.code import bound, closed, definitions, loaded, read
from course_tools.author.lab_source import grade_id_of, is_answer, is_check, questions, read_lab, student_version
from course_tools.author.marks import BEGIN_HIDDEN, MAGIC
from course_tools.labs import Lab

from .arguments import ANSWER, Varied, with_notes
from .faults import Fault

CELL_LIMIT_S = 240.0
"""More than any cell takes, on a busy machine too; an answer that does not end costs this and not the stage."""

_SURELY = (ast.Assign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
"""Statements after which the names that they bind are bound; those in an `if` or a `for` perhaps."""

_CELLS = ("<cell ", "<check ", ANSWER)
"""What the file names of cells begin with, here and in `isolated_cell`."""

_numbers = itertools.count(1)
_bound, _read, _loaded = (functools.lru_cache(4096)(names) for names in (bound, read, loaded))


class Step(NamedTuple):
    """A code cell of a lab: its grade_id, whether it is an answer or a check, whether it may fail, its text, and for
    a check the functions that stay."""

    grade_id: str
    answer: bool
    check: bool
    may_fail: bool
    source: str
    keeps: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What runs: a check in a copy of the names."""
        return f"{MAGIC} keeps {', '.join(self.keeps)}\n{self.source}" if self.check else self.source


def run_lab(
    lab: Lab,
    answers: dict[str, str] | None = None,
    *,
    judges: Callable[[str], bool] = bool,
    stubs: bool = False,
    limit_s: float = CELL_LIMIT_S,
    varied: Varied | None = None,
    first: bool = False,
) -> dict[str, str]:
    """Run every cell, checks and hidden tests included.

    Args:
        lab: which.
        answers: grade_id → source, instead of the solution's. Then only the checks that one of these answers can
            reach are run, and what they need: what no name leads to cannot see it, a picture decides nothing, and the
            solved notebook's own run has been through both.
        judges: by its grade_id, whether a check is of interest; with `answers` the others are not run.
        stubs: begin with the students' stubs instead of the solution.
        limit_s: seconds that one cell may take.
        varied: is told what each check gives to the answers. Then cells that no check needs are not run.
        first: stop at the first check that fails.

    Returns:
        grade_id of each check that failed → what it said.
    """
    steps = _steps(lab, stubs)
    if unknown := set(answers or {}) - set(solution_of(lab)):
        raise ValueError(f"{lab.name} has no answer cell {', '.join(unknown)}")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for name in _cells_told():  # of runs that are over: each group of ranks would be sent the text of all of them
        del linecache.cache[name]
    if answers:
        steps = [
            step._replace(source=answers.get(step.grade_id, step.source), may_fail=not step.answer) for step in steps
        ]
        above, steps = _decisive(steps, set(answers), judges)
        namespace = _prepared(tuple(above))()
    failures = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if varied is not None:
        namespace[Varied.NAME] = varied.note
        needed = _needed(steps, [step.check for step in steps])  # pictures decide nothing
        steps = [steps[number]._replace(source=text) for number, text in needed]
    for step in steps:
        try:
            with contextlib.redirect_stdout(io.StringIO()), _limited(limit_s):
                _execute(step.text, namespace, noted=varied is not None and step.answer)
        except Exception as problem:
            if step.check:
                failures[step.grade_id] = f"{type(problem).__name__}: {problem}"
            elif not step.may_fail:
                raise
        if varied is not None:
            varied.after(step.grade_id if step.check else "", BEGIN_HIDDEN in step.source)
        if first and failures:
            break
    torch.set_num_threads(threads)
    return failures


def complaints(lab: Lab, fault: Fault, *, limit_s: float = CELL_LIMIT_S) -> list[str]:
    """What speaks against a known-wrong answer: it loses more or less than it names, or a check breaks down on it.

    Judged by the checks of its question: later ones build on it, and what they say of it depends on their answers.
    """
    own = [check for check in all_checks(lab) if check.startswith(fault.file.stem + "-")]
    if unknown := (fault.loses | fault.may_lose) - set(own):
        return [f"{fault}: {fault.file.stem} of {lab.name} has no check {', '.join(sorted(unknown))}"]
    answers, public = fault.answers(solution_of(lab)), public_checks(lab)
    failures = run_lab(lab, answers, judges=own.__contains__, limit_s=limit_s)
    found = [f"{fault}: does not lose {check}" for check in own if check in fault.loses - set(failures)]
    for check, said in failures.items():
        if check not in fault.loses | fault.may_lose:
            found.append(f"{fault}: loses {check}, which it does not name: {said}")
        elif check in public and not said.startswith("CheckFailed"):
            found.append(f"{fault}: {check} must say what is wrong, not crash: {said}")
    return found


def all_checks(lab: Lab) -> list[str]:
    """The grade_ids of every check, in their order."""
    return [check.grade_id for question in questions(_key(lab)) for check in question.checks]


def public_checks(lab: Lab) -> set[str]:
    """The grade_ids of the checks that students see."""
    return {check.grade_id for question in questions(_key(lab)) for check in question.checks if not check.hidden}


def solution_of(lab: Lab) -> dict[str, str]:
    """grade_id → source of every answer cell."""
    return {step.grade_id: step.source for step in _steps(lab, False) if step.answer}


_key = functools.lru_cache(16)(read_lab)


@functools.lru_cache(16)
def _steps(lab: Lab, stubs: bool) -> list[Step]:
    """The code cells; with the students' stubs, or with the solution."""
    key = _key(lab)
    given = {cell.id: cell.source for cell in (student_version(key) if stubs else key).cells if is_answer(cell)}
    return [
        Step(
            grade_id_of(cell),
            is_answer(cell),
            is_check(cell),
            stubs or "raises-exception" in cell.metadata.get("tags", []),
            given.get(cell.id, cell.source),
            tuple(cell.metadata.get("course", {}).get("keeps", ())),
        )
        for cell in key.cells
        if cell.cell_type == "code" and "google.colab" not in cell.source
    ]


def _decisive(steps: list[Step], answers: set[str], judges: Callable[[str], bool]) -> tuple[list[Step], list[Step]]:
    """What the checks that these answers can reach need: cells that do not depend on the answers, and those that do."""
    functions = _functions(steps)
    reached = _reached(steps, answers, functions)
    above: list[Step] = []
    below: list[Step] = []
    made, used = set[str](), set[str]()
    for number, text in _needed(steps, [step.check and r and judges(step.grade_id) for step, r in zip(steps, reached)]):
        makes, uses = _bound(text), closed(_before(text, frozenset()), functions)
        if reached[number] or uses & made or makes & (made | used):  # a cell that takes a name over stays in its place
            below.append(steps[number]._replace(source=text))
            made, used = made | makes, used | uses
        else:
            above.append(steps[number]._replace(source=text))
    return above, below


def _reached(steps: list[Step], answers: set[str], functions: dict[str, set[str]]) -> list[bool]:
    """Which cells are, or read, directly or through functions and other cells, one of these answers."""
    changed: set[str] = set()
    reached = []
    for step in steps:
        reads = closed(_before(step.source, frozenset()), functions)
        reached.append(step.grade_id in answers or bool(reads & changed))
        surely = set(step.keeps) if step.check else _surely(step.source)
        changed = changed | _makes(step) if reached[-1] else changed - surely
    return reached


def _needed(steps: list[Step], judging: Iterable[bool]) -> list[tuple[int, str]]:
    """The checks that judge, and above them the last cells to bind each name that they need, directly or not.

    Of other checks the functions alone, as when the grader starts a new kernel.
    """
    kept: list[tuple[int, str]] = []
    wanted: frozenset[str] = frozenset()
    for number, (step, judges) in reversed(list(enumerate(zip(steps, judging)))):
        source = definitions(step.source) if step.check and not judges else step.source
        if judges or _makes(step) & wanted:
            kept.append((number, source))
            below = wanted - _makes(step) if step.check else frozenset()
            wanted = below | _before(source, frozenset() if step.check else wanted)
    return kept[::-1]


def _makes(step: Step) -> set[str]:
    """The names that later cells have from this one: of a check, the functions that stay."""
    return set(step.keeps) if step.check else _bound(step.source)


@functools.lru_cache(4096)
def _before(source: str, wanted: frozenset[str]) -> frozenset[str]:
    """The names that must be bound before this cell runs, if `wanted` must be bound after it."""
    for statement in reversed(ast.parse(source).body):
        text = ast.unparse(statement)
        if isinstance(statement, _SURELY):
            wanted = wanted - _bound(text)
        wanted = wanted | (_loaded(text) if isinstance(statement, ast.Assign) else _read(text))
    return wanted


@functools.lru_cache(4096)
def _surely(source: str) -> set[str]:
    """The names that this cell binds anew, whatever they were."""
    texts = (ast.unparse(statement) for statement in ast.parse(source).body if isinstance(statement, _SURELY))
    return {name for text in texts for name in _bound(text)}


def _functions(steps: list[Step]) -> dict[str, set[str]]:
    """Every function and class, and the names that it takes from outside, wherever it is defined."""
    found: dict[str, set[str]] = {}
    for step in steps:
        for name, uses in _defined(step.source):
            found[name] = found.get(name, set()) | uses
    return found


@functools.lru_cache(4096)
def _defined(source: str) -> list[tuple[str, set[str]]]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [(node.name, _read(ast.unparse(node))) for node in ast.parse(source).body if isinstance(node, kinds)]


@functools.lru_cache(2)
def _prepared(steps: tuple[Step, ...]) -> Callable[[], dict[str, Any]]:
    """Run cells on which the known-wrong answers of a question stand, most of them pictures' and data's, once.

    Returns:
        gives the namespace as the cells left it, whatever a known-wrong answer has made of it since: their functions
        look names up there.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for step in steps:
            _execute(step.source, namespace)
    pristine = {name: value for name, value in namespace.items() if name != "__builtins__"}
    texts = {name: linecache.cache[name] for name in _cells_told()}

    def fresh() -> dict[str, Any]:
        linecache.cache.update(texts)
        namespace.clear()
        already: dict[int, Any] = {}
        for name, value in pristine.items():
            try:
                namespace[name] = copy.deepcopy(value, already)
            except (NotImplementedError, RuntimeError, TypeError):  # a widget, a result of autograd, a module
                namespace[name] = value
        return namespace

    return fresh


def _cells_told() -> list[str]:
    """The cells whose text is known to whoever asks for a source."""
    return [name for name in linecache.cache if name.startswith(_CELLS)]


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread when the block takes longer."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not late.is_set():
            raise
        raise TimeoutError(f"no end after {seconds:g} s") from None
    finally:
        timer.cancel()


def _execute(source: str, namespace: dict[str, Any], noted: bool = False) -> None:
    """Run a cell. Calls of a noted one's functions are noted; whoever asks for its text gets it without the notes."""
    if source.startswith(MAGIC):
        line, _, cell = source.removeprefix(MAGIC).partition("\n")
        isolated_cell.run_cell(line, cell, namespace)
        return
    name = f"{ANSWER if noted else '<cell '}{next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for inspect.getsource
    exec(compile(with_notes(source) if noted else source, name, "exec"), namespace)

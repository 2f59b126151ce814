"""`%%ranks 4`: a notebook cell that runs on all ranks, with variables that last from cell to cell.

    %%ranks 4
    x = torch.ones(2) * rank
    dist.all_reduce(x)

`torch`, `dist` (torch.distributed), `rank` and `world_size` are defined. The namespace lives in the ranks, apart from
the notebook's own; `ranks.pull("x")` brings a variable back.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

from course_kit.ranks._diagnosis.failures import RankFailure
from course_kit.ranks._processes import pickling
from course_kit.ranks._processes.packing import cell_label, pack
from course_kit.ranks.pool import Ranks, check_timeout, shared

_latest: Ranks | None = None
_GONE = "The ranks were replaced: variables that earlier %%ranks cells made are gone. Run those cells again."


def load_ipython_extension(shell: Any) -> None:
    """Make `%%ranks` known to IPython; done by itself when this package is imported in a notebook."""

    def ranks(line: str, cell: str) -> None:
        """Run this cell on all ranks: %%ranks 4 [timeout_s=60] [diagnose=True]."""
        run_cell(line, cell, label=_calling_cell())

    shell.register_magic_function(ranks, "cell", "ranks")


def run_cell(line: str, cell: str, label: str = "cell") -> None:
    """Run the source `cell` on all ranks, in the namespace that lasts.

    Args:
        line: what follows `%%ranks`: the number of ranks, then options ("4 timeout_s=10").
        cell: the source below the first line.
        label: what to call the cell in reports.

    Raises:
        RankFailure: a rank raised, died or hung. If the ranks had to be replaced for it, the message says so.
        SyntaxError: the cell is not Python.
        ValueError: the options make no sense.
    """
    global _latest
    world_size, timeout_s, diagnose = _options(line)
    filename = f"<ranks {label}>"
    source = "\n" + cell  # the line of the magic itself counts, so that line numbers are those on the screen
    compile(source, filename, "exec")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    _latest = shared(world_size)
    generation = _latest.generation
    try:
        _latest.call(pack(_execute, (source, filename), {}), timeout_s, diagnose, lasting=True)
    except RankFailure as failure:
        if _latest.generation != generation:
            failure.add_note(_GONE)
        raise


def pull(name: str) -> list[Any]:
    """The values of variable `name` in the ranks of the last `%%ranks` cell, in rank order.

    Raises:
        NameError: a rank has no such variable.
        ValueError: no `%%ranks` cell ran yet, or the value cannot be shipped.
    """
    if _latest is None:
        raise ValueError(f"pull({name!r}): no %%ranks cell has run yet, so the ranks have no variables")
    answers = _latest.call(pack(_look_up, (name,), {}), _latest.timeout_s, diagnose=False, lasting=True)
    for rank, (found, value) in enumerate(answers):
        if found == "missing":
            known = ", ".join(value) or "none"
            raise NameError(f"rank {rank} has no variable {name!r}; it has: {known}")
        if found == "stays":
            raise ValueError(f"variable {name!r} cannot be shipped from rank {rank}: {value}")
    return [pickling.loads(value) for _, value in answers]


def _calling_cell() -> str:
    """The label of the cell that IPython is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and cell_label(frame.f_code.co_filename) == "cell":
        frame = frame.f_back
    return cell_label(frame.f_code.co_filename)


def _options(line: str) -> tuple[int, float, bool]:
    """`4 timeout_s=10 diagnose=False` → (4, 10.0, False)."""
    words = line.split()
    numbers = [word for word in words if "=" not in word]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = set(options) - {"timeout_s", "diagnose"}
    if len(numbers) > 1 or unknown or not all(number.isdecimal() for number in numbers):
        raise ValueError(f"%%ranks {line}: expected %%ranks 4, optionally with timeout_s=60 and diagnose=True behind")
    diagnose = options.get("diagnose", "True")
    if diagnose not in ("True", "False"):
        raise ValueError(f"%%ranks {line}: diagnose is True or False")
    try:
        timeout_s = check_timeout(float(options.get("timeout_s", 60)))
    except ValueError as error:
        raise ValueError(f"%%ranks {line}: timeout_s is a number of seconds above 0") from error
    return int(numbers[0]) if numbers else 4, timeout_s, diagnose == "True"


def _namespace() -> dict[str, Any]:
    """In a rank: the variables of its cells, which are those of its `__main__`, as in a notebook."""
    import torch
    import torch.distributed as dist

    main = sys.modules["__main__"]
    if not hasattr(main, "world_size"):
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        vars(main).update(torch=torch, dist=dist, rank=dist.get_rank(), world_size=dist.get_world_size())
    return vars(main)


def _execute(source: str, filename: str) -> None:
    """In a rank: run one cell."""
    exec(compile(source, filename, "exec"), _namespace())  # the reader's own code, as in any notebook


def _look_up(name: str) -> tuple[str, Any]:
    """In a rank: the pickled value of a variable, or why there is none. It must not raise: that might end the ranks."""
    namespace = _namespace()
    if name not in namespace:
        return "missing", [known for known in namespace if not known.startswith("_")]
    try:
        return "found", pickling.dumps(namespace[name])
    except Exception as error:  # noqa: BLE001 (pickling runs code of any class)
        return "stays", f"{type(error).__name__}: {error}"

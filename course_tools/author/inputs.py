"""The inputs of a file: everything that decides what it does when it runs, found by following its imports.

A stored notebook carries a hash of its inputs, so that it is a recorded test: where the hash still fits, its cells
would do again what they did. `start.py test changed` asks the same walk which tests a change can touch.

The walk sees `import` anywhere in a file, modules named in a string (what another process is to run, and what follows
`-m`), and data that lie beside an imported module. A file that reads others says so, in a line
`READS = ("README.md", "docs/*.md")` at its top.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nbformat import NotebookNode

from course_tools import TAUGHT

PACKAGES = (*TAUGHT, "course_tools", "tests", "benchmarks", "start")
KEY = "course"
"""The key of a notebook's metadata that holds its record."""
_MODULE = re.compile(r"\bcourse_\w+(?:\.\w+)*")


def inputs(files: Iterable[Path], root: Path, *, read: bool = True) -> set[Path]:
    """Every file that these files import or read, directly or not, they themselves included; absolute paths.

    Args:
        files: where the walk begins.
        root: the checkout.
        read: with False, what these very files declare in `READS` is left out.
    """
    root = root.resolve()
    first = {file.resolve() for file in files}
    found, waiting = set[Path](), [*first]
    followed, folders = set[str](), {root}
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            if file.suffix == ".py":
                names, globs = _words(file, file.relative_to(root).parts[:-1], file.stat().st_mtime_ns)
                modules = {path for name in names - followed for path in _files(name, root)}
                new = {module.parent for module in modules} - folders
                followed, folders = followed | names, folders | new
                waiting += [*modules, *(data for folder in new for data in _beside(folder))]
                waiting += _declared(globs, root) if read or file not in first else []
    return found


def digest(source: Path, root: Path) -> str:
    """A hash of a notebook's source, all its inputs and the pinned packages; the same on every system."""
    files = {path.relative_to(root.resolve()).as_posix(): path for path in inputs([source], root)}
    pins = root.resolve() / "constraints.txt"
    files |= {pins.name: pins} if pins.exists() else {}
    total = hashlib.sha256()
    for name in sorted(files):
        text = files[name].read_bytes().replace(b"\r\n", b"\n")
        total.update(f"{name} {hashlib.sha256(text).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def record(source: Path, root: Path) -> NotebookNode:
    """What a notebook that runs now is to say of its run: the hash of its inputs, and Python's version."""
    return NotebookNode(inputs=digest(source, root), python="{}.{}".format(*sys.version_info))


def is_stale(notebook: NotebookNode, source: Path, root: Path) -> bool:
    """Whether a stored notebook was run with other inputs than the checkout holds.

    Another Python is not another input: `start.py test all` runs every cell under the Python that is here.
    """
    return notebook.metadata.get(KEY, {}).get("inputs") != digest(source, root)


def imports(nodes: Iterable[ast.AST], package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module of `package` imports, also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@functools.lru_cache(4096)
def _words(file: Path, package: tuple[str, ...], _changed_at: int) -> tuple[set[str], list[str]]:
    """The modules of the course that a Python file imports or names, and the globs of its line `READS = (...)`."""
    tree = ast.parse(file.read_text("utf-8"))
    nodes = [*ast.walk(tree)]
    names = {name for _, name in imports(nodes, package)} | set(_named(nodes))
    lines = [node for node in tree.body if isinstance(node, ast.Assign)]
    declared = [line.value for line in lines if [getattr(each, "id", "") for each in line.targets] == ["READS"]]
    globs = [glob for value in declared for glob in ast.literal_eval(value)]
    return {name for name in names if name.split(".")[0] in PACKAGES}, globs


def _named(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Modules that stand in a string, as in a script for another process: the course's, and what follows `-m`."""
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from _MODULE.findall(node.value)
        elif isinstance(node, ast.List | ast.Tuple):
            words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
            for word in (name for flag, name in zip(words, words[1:]) if flag == "-m" and isinstance(name, str)):
                yield from (word, f"{word}.__main__")


def _declared(globs: Iterable[str], root: Path) -> list[Path]:
    """The files that a line `READS = (...)` means."""
    return [path.resolve() for glob in globs for path in root.glob(glob) if path.is_file()]


def _files(name: str, root: Path) -> Iterator[Path]:
    """What is read when `name` is imported: a module, the packages around it; the last part may be a name inside."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


def _beside(folder: Path) -> list[Path]:
    """The data in a folder of modules, without what systems and editors leave there."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")]
    return [path for path in files if not path.name.startswith((".", "#")) and not path.name.endswith("~")]

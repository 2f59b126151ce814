"""Restrictions of an answer: operations in few formats, no tensors at all, or no mention of some names in its text.

A sum that is meant to show the reach of 16 bits must not slip into 32 on the way, and an elegant correction is none if
it takes ten times the work. So a *dispatch mode*, `Arithmetic`, looks at every operation of PyTorch that passes, counts
additions and multiplications by the numbers that they make, and notes their formats and all other operations. An
account on paper may use none (`without_torch`), and `written_with` reads which names stand in an answer's own text.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from course_kit.cells import is_cell
from course_kit.checks.failed import describe, fail
from course_kit.measure.flops import InAllThreads

ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div"})
"""One floating-point operation for each number of the result."""

_FREE = """alias as_strided detach expand permute reshape select slice split squeeze t transpose unbind unsqueeze view
lift_fresh clone copy stack cat empty empty_like full full_like ones ones_like zeros zeros_like new_empty new_full
new_ones new_zeros fill zero index_select abs neg where eq ge gt le lt ne"""
FREE = frozenset(_FREE.split())
"""Operations that move numbers, compare them or flip signs, and round nothing."""


class Arithmetic(InAllThreads):
    """Watches the operations inside a `with` block.

        with Arithmetic() as seen:
            total = a * b + c
        seen.flops, seen.dtypes, seen.others

    A `sum` among the others hides its formats: torch adds up 16-bit numbers in 32 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0  #: elementwise additions, subtractions, multiplications and divisions of floats
        self.dtypes: set[torch.dtype] = set()  #: the floating-point formats of all operands and results
        self.others: Counter[str] = Counter()  #: the number of calls of each remaining operation on floats, by name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made, given = _floats(result), _floats((args, kwargs))
        name = func._schema.name.removeprefix("aten::").strip("_").removesuffix("_copy")
        self.dtypes.update(tensor.dtype for tensor in made + given)
        if name in ARITHMETIC and made:
            # add and sub take a factor, alpha, for one multiplication more
            each = 1 + ((kwargs or {}).get("alpha", 1) not in (1, -1))
            self.flops += each * made[0].numel()
        elif name not in FREE and (made or given):
            self.others["item" if name == "local_scalar_dense" else name] += 1  # the name that a user knows
        return result


def without_torch(fn: Callable, without: Collection[str]) -> Callable:
    """Return `fn` for a check to call as an account on paper, which neither builds nor measures its subject.

    While `fn` runs, an operation of PyTorch fails the check, on the meta device too. The notebook's things with the
    names in `without`, its models and steps, are out of reach of `fn`, under those names and others.
    """

    @functools.wraps(fn)
    def without_tensors(*args: Any, **kwargs: Any) -> Any:
        with _taken_away(fn, without), _NoTensors(describe(fn)) as mode:
            result = fn(*args, **kwargs)
        mode.complain()
        return result

    return without_tensors


class _NoTensors(InAllThreads):
    """Refuses every operation, and remembers the first: the answer may catch the refusal."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.tried = name, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tried = self.tried or func._schema.name.removeprefix("aten::")
        return self.complain()

    def complain(self) -> None:
        """Fail if there was an operation."""
        if self.tried:
            _not_on_paper(self.name, f"torch's {self.tried}")


class _OutOfReach:
    """Stands in for a thing that an account must not use."""

    def __init__(self, account: str, name: str) -> None:
        self.__dict__.update(account=account, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _not_on_paper(self.__dict__["account"], self.__dict__["name"])

    def __getattr__(self, part: str) -> Any:
        _not_on_paper(self.__dict__["account"], f"{self.__dict__['name']}.{part}")


def _not_on_paper(account: str, came: str) -> NoReturn:
    look = "the rules: numbers from the arguments, without a model, a tensor or a measurement"
    fail(f"{account} is an account on paper", expected="arithmetic alone", came=came, look=look)


@contextmanager
def _taken_away(fn: Callable, without: Collection[str]) -> Iterator[None]:
    """Put some of the notebook's things out of reach, under all names that stand for them."""
    names = getattr(fn, "__globals__", {})
    things = [names[name] for name in without if name in names]
    away = {name: value for name, value in names.items() if any(value is thing for thing in things)}
    names.update({name: _OutOfReach(describe(fn), name) for name in away})
    try:
        yield
    finally:
        names.update(away)


def _floats(values: Any) -> list[Tensor]:
    """The floating-point tensors among values and in lists of them."""
    return [each for each in tree_leaves(values) if isinstance(each, Tensor) and each.dtype.is_floating_point]


def written_with(fn: Callable, *, forbidden: Sequence[str] = (), look: str = "") -> None:
    """Check that a function's cell uses nothing of `forbidden`, by whatever name.

    The meaning of a name decides, not its spelling: an import under another name, outside of the function or in a
    helper of its cell is found out. Names put together at run time are refused where they lead into a module. A copy
    of the forbidden text is not found out: a benefit that counts must be measured.

    Args:
        fn: a function or class of a cell.
        forbidden: dotted names or parts of them, such as "checkpoint" or "dist.all_reduce".
    """
    out_of_reach(fn)
    for part in _of_one_cell(fn):
        try:
            text = AnswerText(part)
        except (OSError, TypeError, SyntaxError):
            if part is not fn and inspect.unwrap(part) is not inspect.unwrap(fn):  # a lambda among others
                continue
            wanted, magic = "a function or class written in the cell above", "a magic such as %%time: take it away"
            fail(f"the text of {describe(part)} cannot be read", expected=wanted, look=look or magic)
        if forbidden and (name := text.made_up):
            fail(f"what {fn.__name__} may use", expected="names as they are written", came=name, look=look)
        for name in forbidden:
            if text.mentions(name):
                fail(f"what {fn.__name__} may use", expected=f"no {name}, under any name", look=look)
    print(f"✓ {fn.__name__} uses what it may")


@contextmanager
def files_that_ran() -> Iterator[set[str]]:
    """The files, with forward slashes, of all Python code that is called inside the block, by this thread."""
    files: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename.replace("\\", "/")))
    try:
        yield files
    finally:
        sys.setprofile(before)


_BY_TEXT = ("import_module", "attrgetter", "methodcaller")
_FRAMES = """inspect traceback _getframe _current_frames currentframe walk_stack walk_tb settrace setprofile f_back
tb_frame f_locals f_globals gi_frame cr_frame __closure__ cell_contents get_objects get_referrers get_referents"""
FRAMES = frozenset([*_FRAMES.split(), "start_new_thread"])
"""Names that lead from an answer to the code that judges the answer: to its frames, and the objects that these hold."""

_CHANNELS = """open socket tempfile mmap memmap multiprocessing subprocess torch.save torch.load write_bytes write_text
read_bytes read_text tofile fromfile from_file os.environ TCPStore FileStore HashStore PrefixStore _get_default_store
rpc share_memory_"""
CHANNELS = tuple(_CHANNELS.split())
"""Ways between ranks that are not counted, for the `forbidden` of a lab that counts sent bytes."""


def out_of_reach(fn: Any) -> None:
    """Check, before an answer runs, that no code of its cell mentions `FRAMES`: afterwards would be too late."""
    codes = [each.__code__ for part in _of_one_cell(fn) for each in _functions(part)]
    for name in set().union(*(_words_in(code) & FRAMES for code in codes if is_cell(code.co_filename))):
        fail(f"what {describe(fn)} may use", expected=f"no {name}: an answer does not look at who calls it")


def _of_one_cell(fn: Any) -> list[Any]:
    """An answer, and the functions of its own cell that it calls: the notebook's others are not its text."""
    fn = inspect.unwrap(getattr(fn, "func", getattr(fn, "__func__", fn)))  # the function of a partial, of a method
    if not isinstance(fn, type) and (_functions(type(fn)) or not hasattr(fn, "__name__")):  # an object that is called
        fn = type(fn)
    files = {each.__code__.co_filename for each in _functions(fn)}
    inner = (each for part in called_by(fn)[1:] for each in _functions(part))
    return [fn, *(each for each in inner if each.__code__.co_filename in files)]  # a class has no text in some kernels


def _functions(part: Any) -> list[FunctionType]:
    """A function, or the methods of a class, static ones and properties among them."""
    inner = vars(part).values() if isinstance(part, type) else [part]
    plain = (getattr(each, "__func__", getattr(each, "fget", each)) for each in inner)
    return [each for each in plain if isinstance(each, FunctionType)]


def called_by(fn: Any, seen: dict[str, Any] | None = None) -> list[Any]:
    """A function or class, and those of its notebook that it calls by name, for `written_with` to read them, too."""
    seen = {} if seen is None else seen
    seen[fn.__name__] = fn
    for part in _functions(fn):
        for name in _words_in(part.__code__, texts=False) - set(seen):
            other = part.__globals__.get(name)
            if isinstance(other, type | FunctionType) and other.__module__ == fn.__module__:
                called_by(other, seen)
    return list(seen.values())


def _words_in(code: CodeType, texts: bool = True) -> set[str]:
    """The names that a function's code mentions, and texts that may be used as names; inner functions included."""
    inner = (_words_in(each, texts) for each in code.co_consts if isinstance(each, CodeType))
    said = [each for value in code.co_consts for each in (value if isinstance(value, tuple) else [value]) if texts]
    return {*code.co_names, *(each for each in said if isinstance(each, str))}.union(*inner)  # a pattern's are a tuple


class AnswerText:
    """The text of one function or class, and the meaning of its names.

    Raises:
        OSError, TypeError, SyntaxError: the function has no text.
    """

    def __init__(self, fn: Callable) -> None:
        inner, nodes = inspect.unwrap(fn), list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(fn)))))
        plain = [node for node in nodes if isinstance(node, ast.Import)]
        taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        imports = [alias.name for node in plain for alias in node.names]
        imports += [f"{node.module or ''}.{alias.name}" for node in taken for alias in node.names]
        names = set(filter(None, map(_dotted, nodes))) - _own_variables(inner, nodes[1])
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._ours = [vars(module) for key, module in list(sys.modules.items()) if key.startswith("course_")]
        self._scope = dict(getattr(inner, "__globals__", None) or vars(sys.modules[fn.__module__]))
        for node in (*plain, *taken):
            with contextlib.suppress(Exception):  # a module that cannot be imported cannot be used either
                exec(ast.unparse(node), self._scope)
        self._meanings = {text: self._meaning(text) for text in (*names, *imports)}

    @property
    def made_up(self) -> str:
        """The first call that reaches into a module by a name that is put together at run time; "" for none."""
        for call in self._calls:
            name, args = ast.unparse(call.func), call.args
            into = name in ("getattr", "vars") and args and isinstance(self._meaning(ast.unparse(args[0])), ModuleType)
            into = into and not (len(args) > 1 and isinstance(args[1], ast.Constant))
            if into or name in ("eval", "exec", "__import__") or name.rpartition(".")[2] in _BY_TEXT:
                return ast.unparse(call)
        return ""

    def mentions(self, name: str) -> bool:
        """Whether a dotted name, or a part of one, stands in the text, or another name for the same thing."""
        tables = (module.get(name) for module in self._ours)  # data such as `ORDERS` does not know its name
        things = [each for each in tables if isinstance(each, dict | list | tuple)]
        if (thing := self._meaning(name)) is not None:
            things.append(thing)
        return any(
            f".{name}." in f".{text}." or any(meaning is thing for thing in things) or _is_from(meaning, name)
            for text, meaning in self._meanings.items()
        )

    def _meaning(self, name: str) -> Any:
        """The object behind a dotted name, in the notebook or by the function's own import; None: unknown."""
        head, *rest = name.split(".")
        thing = self._scope.get(head)
        for part in rest:
            thing = inspect.getattr_static(thing, part, None)  # a property would run the answer's code
        return thing


def _is_from(thing: Any, name: str) -> bool:
    """Whether `name` names a thing or its module; without a dot, course modules, which labs use, do not count."""
    thing = inspect.unwrap(getattr(thing, "func", thing)) if callable(thing) else thing
    if isinstance(thing, ModuleType):
        return f".{name}." in f".{thing.__name__}."
    module, own = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    ours = module.startswith("course_") and "." not in name
    return f".{name}." in (f".{own}." if ours else f".{module}.{own}.")


def _own_variables(fn: Any, head: ast.AST) -> set[str]:
    """Names that a function binds and looks up nowhere else: these stand for its own things."""
    if not (isinstance(head, ast.FunctionDef) and isinstance(fn, FunctionType)):
        return set()
    outside = (*head.decorator_list, *head.args.defaults, *filter(None, head.args.kw_defaults))
    looked_up = _words_in(fn.__code__, texts=False).union(*(map(_dotted, ast.walk(each)) for each in outside))
    return {*fn.__code__.co_varnames, *fn.__code__.co_cellvars} - looked_up


def _dotted(node: ast.AST) -> str:
    """`a`, `a.b` or `getattr(a, "b")` as a dotted name; "" for anything else."""
    match node:
        case ast.Name() | ast.Attribute():
            return ast.unparse(node)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            return f"{ast.unparse(owner)}.{name}"
    return ""

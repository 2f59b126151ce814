"""Calls that work: what may be shipped, what a call finds, and what it leaves behind."""

import importlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from course_kit import ranks
from course_kit.ranks._processes import packing
from tests.ranks.conftest import Cell, alive, define


def test_what_lies_on_a_gpu_goes_to_the_receivers_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packing, "_is_on_accelerator", lambda tensor: tensor.requires_grad
    )  # a stand-in where there is no GPU
    layer, value = packing.loads(packing.dumps((torch.nn.Linear(2, 2), torch.ones(2, requires_grad=True))))
    assert isinstance(layer.weight, torch.nn.Parameter) and layer.weight.requires_grad
    assert value.requires_grad and value.is_leaf


LOCK = threading.Lock()
USES = define("def helper():\n    return guard\n\ndef f():\n    return helper()", guard=LOCK)
NO_SIZES: tuple[Any, ...] = (2.0, True, "4")
NO_LIMITS: tuple[Any, ...] = (0, -1, math.nan, math.inf, None, "60")
REFUSED: list[tuple[str, Callable[[], object]]] = [
    *[("at least 1 rank", partial(ranks.run, int, world_size=size)) for size in (0, -3)],
    ("at most 64", partial(ranks.run, int, world_size=200)),
    *[("whole number", partial(ranks.run, int, world_size=size)) for size in NO_SIZES],
    *[("timeout_s", partial(ranks.run, int, timeout_s=limit)) for limit in NO_LIMITS],
    # NCCL itself would say "duplicate GPU" or "invalid device ordinal", in a rank, later.
    (r"each of the 64 ranks .* can use \d+; .* gloo moves the tensors", partial(ranks.Ranks, 64, backend="nccl")),
    (
        "^the argument 'queue' cannot be shipped to the ranks: it is a lock",
        partial(ranks.run, define("def f(batch, queue): return 1"), 1, LOCK),
    ),
    (r"^the global variable 'guard', which helper\(\) uses, cannot", partial(ranks.run, USES)),
    (
        r"^the enclosed variable 'lock', which <lambda>\(\) uses, cannot",
        (lambda lock: partial(ranks.run, lambda: lock))(LOCK),
    ),
]


@pytest.mark.parametrize(("words", "call"), REFUSED)
def test_what_makes_no_sense_or_cannot_be_shipped_is_refused(words: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_results_come_in_rank_order_after_a_refusal(cell: Cell) -> None:
    with pytest.raises(ValueError, match="lock"):
        ranks.run(cell("def f(batch): return 1"), LOCK, world_size=3)
    fn = cell("""
        def f(base, *, factor):
            x = torch.tensor([float(rank())])
            dist.all_reduce(x)
            return base + factor * rank(), x.item(), dist.get_world_size()
        """)
    assert ranks.run(fn, 100, factor=2, world_size=3) == [(100, 3.0, 3), (102, 3.0, 3), (104, 3.0, 3)]


def test_a_function_brings_its_helpers_globals_and_enclosed_variables(cell: Cell) -> None:
    make = cell(
        """
        from dataclasses import dataclass

        @dataclass
        class Point:
            x: int

        def helper(y):
            return Point(SCALE * y)

        def make(offset):
            def inner():
                return helper(offset + rank())
            return inner
        """,
        SCALE=10,
    )
    points = ranks.run(make(1), world_size=2)
    assert [point.x for point in points] == [10, 20]
    assert type(points[0]) is type(points[1])


@pytest.mark.parametrize("value", [torch.ones(3, requires_grad=True), torch.nn.Linear(2, 2), {"a": [1, None]}])
def test_tensors_modules_and_containers_are_shipped_both_ways(cell: Cell, value: Any) -> None:
    back = ranks.run(cell("def f(x): return x"), value, world_size=2)[1]
    assert type(back) is type(value)
    if isinstance(value, torch.Tensor) and isinstance(back, torch.Tensor):
        assert torch.equal(back, value) and back.requires_grad
    result = ranks.run(cell("def f(): return torch.ones(2, requires_grad=True) * 3"), world_size=2)[0]
    assert result.tolist() == [3, 3] and result.is_leaf, "a result with a graph"


def test_an_attribute_that_is_called_like_a_module_of_torch_travels(cell: Cell) -> None:
    importlib.import_module("torch.distributed.config")  # which many a module of torch does
    layer = "class Layer:\n    def __init__(self): self.config = dist.get_rank()\n\ndef f(): return Layer().config"
    assert ranks.run(cell(layer), world_size=2) == [0, 1]


def test_a_rank_may_not_start_ranks(cell: Cell) -> None:
    nested = cell("def f():\n    from course_kit import ranks\n    ranks.run(int)")
    with pytest.raises(ranks.RankFailure, match="already runs in a rank"):
        ranks.run(nested, world_size=2)


def test_prints_are_labelled_and_ordered(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    fn = cell("""
        def f():
            time.sleep(0.05 * (3 - rank()))
            print("hello\\nworld", rank())
            sys.stderr.write(f"careful {rank()}\\n")
            os.system(f"echo from a child of {rank()}")
        """)
    ranks.run(fn)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"[rank {r}] {text}" for r in range(4) for text in ("hello", f"world {r}")]
    errors = [f"[rank {r}] {text}" for r in range(4) for text in (f"careful {r}", f"from a child of {r}")]
    assert sorted(shown.err.splitlines()) == sorted(errors)


@pytest.mark.skipif(not os.path.exists("/dev/stderr"), reason="needs a system with /dev/stderr")
def test_a_command_that_opens_the_log_anew_costs_no_result(cell: Cell) -> None:
    """It cuts the file, which then is shorter than what was read of it."""
    with ranks.Ranks(2) as pool:
        pool.run(cell("def f(): os.system('echo so far >&2')"))
        assert pool.run(cell("def f(): return os.system('true > /dev/stderr')")) == [0, 0]


def test_rank_0_prints_while_it_works(cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It waits, between two lines, for a file that is written when the first line is seen here."""
    seen = tmp_path / "seen"

    class Watched:
        def write(self, text: str) -> None:
            seen.touch()

        def flush(self) -> None: ...

    wait = "def f(seen):\n    print('first')\n    while not os.path.exists(seen): time.sleep(0.01)\n    print('second')"
    monkeypatch.setattr(sys, "stdout", Watched())
    ranks.run(cell(wait), str(seen), world_size=2, timeout_s=30)


def test_every_call_begins_like_a_new_process(cell: Cell) -> None:
    fn = cell("""
        def f():
            found = torch.rand(1).item(), torch.get_default_dtype(), torch.is_grad_enabled()
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            return found
        """)
    first, second = ranks.run(fn, world_size=2), ranks.run(fn, world_size=2)
    assert ranks.run(cell("def f(): dist.destroy_process_group()"), world_size=2) == [None, None]
    assert ranks.run(cell("def f(): dist.barrier()"), world_size=2) == [None, None], "the next call has a new group"
    assert first == second and first[0] == first[1]
    assert first[0][1:] == (torch.float32, True)


def test_ranks_see_the_notebooks_folder_path_and_environment(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = cell("def f(): return os.getcwd(), sys.path[0], os.environ.get('COLOUR'), os.environ['RANK']")
    ranks.run(look, world_size=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/somewhere")
    monkeypatch.setenv("COLOUR", "blue")
    assert ranks.run(look, world_size=2)[1] == (str(tmp_path), "/somewhere", "blue", "1")
    ranks.run(cell("def f(): os.environ.pop('RANK')"), world_size=2)  # a call may take its own numbers away
    monkeypatch.setenv("COLOUR", "red")
    assert ranks.run(cell("def f(): return os.environ['COLOUR']"), world_size=2) == ["red", "red"]


def value_of(name: str) -> object:
    return importlib.import_module(name).value()


MEETS = "import torch.distributed as dist\ndef value():\n    dist.barrier()\n    return "  # which is diagnosed


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("my_helpers.py", "my_helpers.py"),
        ("my_house/attic/my_chest.py", "my_house/attic/my_chest.py"),  # attic: a namespace package
        ("becomes_a_package.py", "becomes_a_package/__init__.py"),
    ],
    ids=["a module", "below a package", "a module that becomes a package"],
)
def test_what_was_edited_is_read_again(first: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_house").mkdir()
    (tmp_path / "my_house" / "__init__.py").touch()
    name = first.removesuffix(".py").replace("/", ".")
    for path, value in ((first, 1), (then, "two")):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{MEETS}{value!r}\n")
        os.utime(file, (time.time() + 5, time.time() + 5 * (value == "two")))
        module = importlib.import_module(name)
        assert ranks.run(value_of, name, world_size=2) == [value, value]
        assert ranks.run(module.value, world_size=2) == [value, value]
        if then != first:
            file.unlink()
    for name in [name for name in sys.modules if name.startswith(("my_h", "becomes_"))]:
        del sys.modules[name]


def test_processes_stay_between_calls_and_end_with_the_pool_also_a_forgotten_one() -> None:
    with ranks.Ranks(2) as pool:
        pids = pool.run(os.getpid)
        assert pool.run(os.getpid) == pids
    assert not any(alive(pid) for pid in pids)
    with pytest.raises(ValueError, match="closed"):
        pool.run(int)
    pool = ranks.Ranks(2)
    pids = pool.run(os.getpid)
    del pool
    assert not any(alive(pid) for pid in pids)


def test_device_is_the_cpu_here(cell: Cell) -> None:
    joined_already = "def f():\n    from course_kit import ranks\n    ranks.init()\n    return str(ranks.device())"
    assert ranks.run(cell(joined_already), world_size=2, diagnose=False)[0] in ("cpu", "cuda:0")


def test_a_gpu_that_a_call_begins_to_use_has_the_seed_of_the_cpu_in_the_first_call_too(cell: Cell) -> None:
    """PyTorch keeps a seed until CUDA begins; a generator that then got none would be seeded at random."""
    begin_cuda = cell("""
        def f():
            from unittest import mock
            gpu = torch.Generator().manual_seed(1)
            with mock.patch.object(torch.cuda, "default_generators", (gpu,)):
                with mock.patch.object(torch.cuda.random, "device_count", lambda: 1):
                    for kept in filter(None, torch.cuda._lazy_seed_tracker.get_calls()):
                        kept[0]()
            return gpu.initial_seed(), torch.initial_seed()
        """)
    with ranks.Ranks(1) as pool:
        for gpus, cpus in (pool.run(begin_cuda)[0] for _ in range(2)):
            assert gpus == cpus


@pytest.mark.gpu
def test_a_gpus_random_numbers_begin_anew_in_each_call(cell: Cell) -> None:
    fn = cell("def f(): before = torch.cuda.get_rng_state(); torch.rand(3, device='cuda'); return before")
    first, second = (ranks.run(fn, world_size=1)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_sixteen_ranks_work(cell: Cell) -> None:
    with ranks.Ranks(16) as pool:
        assert pool.run(cell("def f(): x = torch.ones(1); dist.all_reduce(x); return x.item()")) == [16.0] * 16


def test_calls_from_two_threads_take_turns(cell: Cell) -> None:
    fn, results = cell("def f(x): dist.barrier(); return x"), {}

    def work(x: int) -> None:
        results[x] = [ranks.run(fn, x, world_size=2) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(x,)) for x in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {x: [[x, x]] * 5 for x in range(2)}


@pytest.mark.nightly
def test_two_programs_side_by_side_do_not_collide() -> None:
    program = (
        "from course_kit import ranks; import torch.distributed as dist\n"
        "def f(): dist.barrier(); return dist.get_rank()\n"
        "print([ranks.run(f, world_size=2) for _ in range(20)][-1])"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [process.communicate(timeout=120)[0] for process in running] == ["[0, 1]\n"] * 2
    finally:
        for process in running:
            process.kill()
            process.communicate()

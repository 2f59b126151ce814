"""Kernels are forked from one process: nothing of one submission reaches the next, and no answer that process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from course_tools.grading.grade import grade_one
from course_tools.grading.sandbox import forks
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.bubblewrap import KINDS
from course_tools.grading.sandbox.kernel import Budget, Kernel
from course_tools.grading.sandbox.limits import Limits
from tests.grading.conftest import QUICK, WAYS, notebook, submission

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each kernel is a Python of its own"),
]


@pytest.fixture
def kernels(way: str) -> Iterator[list[Kernel]]:
    """Two kernels, each for a submission of its own."""
    with ExitStack() as stack:
        yield [stack.enter_context(Kernel(Limits(), way, Budget(300))) for _ in range(2)]


def said(kernel: Kernel, expression: str) -> str:
    """What an expression is in a kernel."""
    reply = kernel.run(f"raise LookupError({expression})")
    assert reply.error == "LookupError", reply
    return reply.text


def fork_of(kernel: Kernel) -> forks.Forked:
    """The processes of a kernel that was forked."""
    assert kernel._sandbox._fork, forks._REFUSED
    return kernel._sandbox._fork


LEAVES = """\
import builtins, math, os, random, sys, types, numpy, torch
from course_kit.checks import check
builtins.leaked = math.leaked = torch.Tensor.leaked = check.leaked = types.ModuleType("leaked")
sys.modules["leaked"] = math.leaked
sys.path.append("/leaked")
os.environ["LEAKED"] = "1"
random.seed(3), numpy.random.seed(3), torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(3)
held = ["leaked" + "=marker" + str(number) for number in range(1000)]
for folder in (".", os.environ["HOME"], os.environ["TMPDIR"]):
    with open(os.path.join(folder, "leaked"), "w") as file: file.write("x")
"""
SCAN = """\
import re
def found():
    count = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" in line.split()[1]:
                memory.seek(start)
                try: count += len(re.findall(rb"leaked[=]marker[0-9]+", memory.read(end - start)))
                except OSError: pass
    return count
"""
LOOKS = """\
import builtins, math, os, sys, torch
from course_kit.checks import check
assert not any(hasattr(thing, "leaked") for thing in (builtins, math, torch.Tensor, check)), "a module"
assert "leaked" not in sys.modules and "/leaked" not in sys.path and "LEAKED" not in os.environ, "the process"
assert torch.get_default_dtype() == torch.float32 and torch.get_num_threads() == 1, "torch's settings"
for folder in (".", os.environ["HOME"], os.environ["TMPDIR"]): assert "leaked" not in os.listdir(folder), folder
"""


def test_nothing_of_one_submission_is_visible_to_the_next(way: str) -> None:
    with Kernel(Limits(), way, Budget(300)) as first:
        reply = first.run(f"{LEAVES}\n{SCAN}")
        assert not reply.error, reply
        assert int(said(first, "found()")) >= 1000, "what it has in memory can be found"
        with Kernel(Limits(), way, Budget(300)) as beside:
            assert (beside.run(LOOKS).text, beside.run(SCAN).text, said(beside, "found()")) == ("", "", "0")
    with Kernel(Limits(), way, Budget(300)) as after:
        assert (after.run(LOOKS).text, after.run(SCAN).text, said(after, "found()")) == ("", "", "0")
        assert first._sandbox.forked and after._sandbox.forked, forks._REFUSED


def test_kernels_draw_their_own_random_numbers(kernels: list[Kernel]) -> None:
    for kernel in kernels:
        kernel.run("import numpy, random, torch, uuid")
    draws = "[random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), str(uuid.uuid4())]"
    first, second = (said(kernel, draws).strip("[]").split(", ") for kernel in kernels)
    assert not set(first) & set(second)


def test_no_descriptor_leads_to_the_zygote_or_to_another_kernel(kernels: list[Kernel]) -> None:
    forked = [fork_of(kernel) for kernel in kernels]
    pids = [forks.the_zygote().pid, *(one.keeper.pid for one in forked), *(one.kernel.pid for one in forked)]
    for kernel in kernels:
        kernel.run("1")
    opened = [_opened(pid) for pid in pids]
    for number, own in enumerate(opened[3:], 3):
        others = set[str]().union(
            *(files for other, files in enumerate(opened) if other != number), _opened(os.getpid())
        )
        assert own and not own & others


def _opened(pid: int) -> set[str]:
    """The sockets, pipes and namespaces that a process has open."""
    links = set[str]()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:
            continue
    return {link for link in links if ":[" in link and "anon" not in link}


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_no_answer_reaches_the_zygote(kernels: list[Kernel]) -> None:
    zygote, other, kernel = forks.the_zygote().pid, fork_of(kernels[1]), kernels[0]
    assert not kernel.run("import os").error
    for pid in (zygote, other.keeper.pid, other.kernel.pid, os.getpid()):
        assert said(kernel, f"os.path.exists('/proc/{pid}')") == "False"
        assert kernel.run(f"os.kill({pid}, 0)").error == "ProcessLookupError"
    assert said(kernels[0], "os.getppid(), open('/proc/1/comm').read()") == "(0, 'bwrap\\n')"
    assert forks.the_zygote().pid == zygote and not kernels[1].run("1").error


def test_the_program_that_a_kernel_runs_cannot_be_changed(kernels: list[Kernel]) -> None:
    """It leads past the sandbox, where files are read-only; so it is a copy of Python, sealed in memory."""
    assert said(kernels[0], "__import__('os').readlink('/proc/self/exe')").startswith("/memfd:python")
    assert kernels[0].run("open('/proc/self/exe', 'r+b')").error in ("OSError", "PermissionError")
    assert said(kernels[0], "__import__('sys').executable") == sys.executable


@pytest.mark.parametrize("way", [sandbox.NONE], indirect=True)
def test_a_zygote_that_was_killed_is_replaced(kernels: list[Kernel]) -> None:
    """Without isolation an answer can kill it, as it can the grader; the next submission does not feel it."""
    zygote = forks.the_zygote()
    psutil.Process(zygote.pid).kill()
    zygote._process.wait()
    with Kernel(Limits(), sandbox.NONE, Budget(300)) as kernel:
        assert kernel._sandbox.forked and not kernel.run("1").error
    assert forks.the_zygote().pid != zygote.pid


def test_a_kernel_that_is_not_isolated_does_not_start() -> None:
    """Nothing is joined, or the namespaces that this process is in."""
    limits = {"uid": 65536} if os.geteuid() == 0 else {}  # so that it would have no privileges
    request = {"isolated": True, "folder": "/", "environment": {}, "limits": limits, "arguments": []}
    with pytest.raises(forks.Refused, match="isolated by all of"):
        forks.the_zygote().fork(request, [])
    own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in KINDS]
    try:
        with pytest.raises(forks.Refused, match=r"not isolated: \['mnt'|setns"):
            forks.the_zygote().fork(request, own)
    finally:
        for fd in own:
            os.close(fd)


@pytest.mark.nightly  # a killed zygote's kernels start anew, too
def test_where_kernels_cannot_be_forked_results_are_the_same(
    key: NotebookNode, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise forks.Refused("on purpose")

    monkeypatch.setattr(forks, "_REFUSED", [])
    monkeypatch.setattr(forks.Zygote, "fork", refuse)
    right, wrong = (notebook(key, q3=f"def half(number):\n    return {value}\n") for value in ("number / 2", "0"))
    results = [grade_one(nbformat.writes(key), submission(book), QUICK) for book in (right, wrong)]
    assert forks._REFUSED == ["on purpose"]
    assert [result.points for result in results] == [60, 40]

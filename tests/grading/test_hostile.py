"""What hostile and broken answers must become. Each runs in a real kernel; q1 misbehaves, q3 is right.

All of it runs in the strongest isolation that this machine has, and nightly as plain processes as well.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from course_tools.author.lab_source import grade_id_of
from course_tools.grading.grade import grade_one
from course_tools.grading.report.results import DIED, FAILED, GRADED, NOT_RUN, PASSED, TAMPERED, TIMEOUT
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.kernel import Kernel
from course_tools.grading.sandbox.limits import MIB, Limits
from tests.grading.conftest import (
    HALF,
    MOVING_AVERAGE,
    QUICK,
    WAYS,
    Grade,
    cell_of,
    notebook,
    outcomes,
    points,
    submission,
)

pytestmark = [pytest.mark.notebook, pytest.mark.usefixtures("way")]
HEAD = "def moving_average(numbers, width):\n"
SHORT = dataclasses.replace(QUICK, cell_s=2)
"""For answers that do not end."""
RANKS = dataclasses.replace(QUICK, memory_bytes=4096 * MIB)
WAIT = "while True: __import__('time').sleep(1)"
"""A loop without end that leaves the processor to others; the one that takes it is in the table."""


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """What the sandbox alone can promise."""
    return pytest.mark.parametrize("way", WAYS[:1], indirect=True)(test)


class Row(NamedTuple):
    """An answer of q1 (and of q3) and what becomes of it: points of q1 and q3, outcomes of q1's checks, words.

    Of `says` each part (between " … ") stands in the message of q1's first check, `notes` in a note of the whole.
    """

    q1: str
    points: tuple[float, float] = (0, 20)
    outcomes: tuple[str, str] = (FAILED, FAILED)
    says: str = ""
    notes: str = ""
    status: str = GRADED
    q3: str = HALF
    limits: Limits = QUICK


LATE, DEAD, RIGHT = (TIMEOUT, TIMEOUT), (DIED, DIED), (PASSED, PASSED)
HOG = """\
    import os, time
    for _ in range(6):
        if os.fork() == 0:
            held = bytearray(b'x') * (400 * 2**20)
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
"""
NOISE = """\
import os, sys, warnings
print('hello', file=sys.stderr)
warnings.warn('x')
os.write(2, b'y')
"""
IGNORE = "    import signal\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
SPY = """\
def half(number):
    import linecache
    text = str([linecache.cache[k] for k in linecache.cache])
    raise AssertionError(text[text.find('one window of three, a secret') - 100:][:400])
"""
YES = "class Yes(list):\n    def __eq__(self, other): return True\n    def __len__(self): return 2\n"
FAKE = "class check:\n    equal = call = staticmethod(lambda *a, **k: None)\n"
REFERENCE = "def reference(number): return None\n"
ROWS = {
    "wrong, hidden": Row(f"{HEAD}    return [1.5, 2.5]\n", (20, 20), (PASSED, FAILED)),
    "wrong": Row(f"{HEAD}    return [1.5]\n", says="expected  2 entries … where the last window ends"),
    "syntax error": Row("def moving_average(numbers, width:\n    return 1\n", notes="SyntaxError"),
    "failed import": Row(
        f"import no_such_module\n{MOVING_AVERAGE}", says="answers this question ended with ModuleNotFoundError"
    ),
    "sys.exit in the function": Row(f"{HEAD}    import sys\n    sys.exit(0)\n"),
    "sys.exit below it": Row(f"{MOVING_AVERAGE}\nimport sys\nsys.exit(0)\n", (40, 20), RIGHT),
    "stderr": Row(NOISE + MOVING_AVERAGE, (40, 20), RIGHT),
    "exit in the function": Row(f"{HEAD}    import os; os._exit(0)\n", outcomes=DEAD),
    "killed": Row(f"{HEAD}    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", outcomes=DEAD),
    "exit in the cell": Row(f"{MOVING_AVERAGE}\nimport os\nos._exit(0)\n", outcomes=DEAD),
    "a loop that computes": Row(f"{HEAD}    while True: pass\n", outcomes=LATE, says="it did ", limits=SHORT),
    "sleep": Row(f"{HEAD}    __import__('time').sleep(10**6)\n", outcomes=LATE, says="it did ", limits=SHORT),
    "a loop that ignores interrupts": Row(
        f"{HEAD}{IGNORE}    {WAIT}\n", outcomes=LATE, says="did not stop when interrupted", limits=SHORT
    ),
    "a loop below the function": Row(
        f"{MOVING_AVERAGE}\n{WAIT}\n", (40, 20), RIGHT, notes="was stopped after 2 s", limits=SHORT
    ),
    "an error of a hundred megabytes": Row(f"{HEAD}    raise AssertionError('x' * 10**8)\n", says="xxx"),
    "one who quotes a hidden test": Row(MOVING_AVERAGE, (40, 0), RIGHT, q3=SPY),
    "equal to everything": Row(f"{YES}{HEAD}    return Yes()\n"),
    "names of the lab": Row(
        f"{FAKE}{HEAD}    return 1\n", (0, 0), q3=f"{FAKE}{REFERENCE}def half(number): return None\n"
    ),
    "a name by accident": Row(f"{MOVING_AVERAGE}\ncheck = 7\n", (40, 20), RIGHT),
    "memory of one process": Row(f"{HEAD}    return [bytearray(10**11)]\n", says="MemoryError"),
    "memory of many": Row(f"{HEAD}{HOG}", outcomes=DEAD, status="memory limit"),
}


CHEATS = {
    "asserts dropped": (
        "get_ipython().input_transformers_post.append("
        "lambda lines: [line for line in lines if not line.startswith(('assert', 'check'))])\n"
    ),
    "cells emptied": "get_ipython().input_transformers_cleanup.append(lambda lines: ['1'])\n",
    "calls dropped": (
        "import ast\nclass Drop(ast.NodeTransformer):\n    def visit_Expr(self, node): return ast.Pass()\n"
        "get_ipython().ast_transformers.append(Drop())\n"
    ),
    "check.equal replaced": "check.equal = lambda *a, **k: None\n",
    "code replaced": "check.equal.__code__ = (lambda *a, **k: None).__code__\n",
    "fail replaced": "import course_kit.checks.check as c\nc.fail = lambda *a, **k: None\n",
    "CheckFailed patched": "from course_kit.checks import CheckFailed\nCheckFailed.__init__ = lambda *a: 1/0\n",
    "builtin replaced": "import builtins\nbuiltins.all = lambda x: True\n",
    "shell replaced": "shell = get_ipython()\nold = shell.run_cell\nshell.run_cell = lambda *a, **k: old(*a, **k)\n",
    "all is well": (
        "from ipykernel.ipkernel import IPythonKernel\n"
        "async def do(self, *a, **k):\n"
        "    return {'status': 'ok', 'execution_count': 1, 'payload': [], 'user_expressions': {}}\n"
        "IPythonKernel.do_execute = do\n"
    ),
}
ROWS |= {
    name: Row(f"{cheat}{HEAD}    return 1\n", (0, 0), (TAMPERED, TAMPERED), notes="tampered", status=TAMPERED)
    for name, cheat in CHEATS.items()
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_answer_costs_its_own_question(grade: Grade, row: Row) -> None:
    result = grade(q1=row.q1, q3=row.q3, limits=row.limits)
    assert (tuple(points(result).values()), result.status) == (row.points, row.status), result.notes
    first, second = result.of("q1")
    assert (first.outcome, second.outcome) == row.outcomes
    assert [part for part in row.says.split(" … ") if part not in first.message] == []
    assert row.notes in " ".join(result.notes) and "secret" not in str(result)
    assert len(first.message) < 2100
    if row.outcomes == LATE:
        assert second.message.startswith("not run")
    else:
        assert second.outcome in (DIED, TAMPERED) or not second.message, "a hidden check says nothing"


def test_right_answers_get_full_marks(full_key: NotebookNode, way: str) -> None:
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key)), RANKS)
    assert (result.points, result.out_of, result.status) == (100, 100, GRADED)
    assert result.isolated == (way != sandbox.NONE)
    assert [note.split(":")[0] for note in result.notes] == ([] if result.isolated else ["NOT ISOLATED"])


def test_deadlocked_ranks_cost_their_question_and_bounded_time(full_key: NotebookNode) -> None:
    answer = (
        "def mean_of_ranks(value):\n    if dist.get_rank() == 0:\n        dist.all_reduce(value)\n    return value\n"
    )
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key, q2=answer)), RANKS)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert "waits in all_reduce" in result.of("q2")[0].message


@pytest.mark.nightly
def test_ranks_that_never_return_cost_the_limit_once(full_key: NotebookNode) -> None:
    answer = "def mean_of_ranks(value):\n    import time\n    time.sleep(1000)\n"
    limits = dataclasses.replace(RANKS, cell_s=8)  # the ranks' own first process imports torch
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key, q2=answer)), limits)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert outcomes(result, "q2") == [TIMEOUT, TIMEOUT]
    assert result.of("q2")[1].message.startswith("not run")


@pytest.mark.nightly  # ranks in a deadlock do, too
def test_ranks_that_run_out_of_time_cost_their_question(full_key: NotebookNode) -> None:
    answer = "def mean_of_ranks(value):\n    import time\n    time.sleep(1000)\n"
    impatient = copy.deepcopy(full_key)
    check = cell_of(impatient, "q2-values")
    check.source = check.source.replace("world_size=2)", "world_size=2, timeout_s=2)")
    result = grade_one(nbformat.writes(impatient), submission(notebook(full_key, q2=answer)), RANKS)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert outcomes(result, "q2") == [FAILED, TIMEOUT]


@pytest.mark.parametrize(("body", "outcome"), [(WAIT, TIMEOUT), ("__import__('os')._exit(3)", DIED)])
def test_a_cell_that_shows_two_answers_costs_only_the_one_that_hangs(
    body: str, outcome: str, key: NotebookNode
) -> None:
    shown = copy.deepcopy(key)
    for answer, line in (("q1", "moving_average([1, 2], 1)"), ("q3", "print(half(2), moving_average([1, 2], 1))")):
        place = next(number for number, cell in enumerate(shown.cells) if grade_id_of(cell) == answer)
        shown.cells.insert(place + 1, nbformat.v4.new_code_cell(line))
    handed_in = submission(notebook(key, q1=f"def moving_average(numbers, width):\n    {body}\n"))
    result = grade_one(nbformat.writes(shown), handed_in, SHORT)
    assert [check.outcome for check in result.checks] == [outcome, outcome, PASSED, PASSED], result.notes
    assert result.points == 20


@pytest.mark.parametrize("ignore", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_loop_that_later_questions_call_is_waited_for_once(
    key: NotebookNode, ignore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells and checks of q3 call the answer of q1 six times: an error at once, also in the next kernel."""
    calls = copy.deepcopy(key)
    calls.metadata["course"]["carry_errors"] = True  # else q3 would be judged again, with a right version of q1
    for check in ("q3-values", "q3-hidden"):
        cell = cell_of(calls, check)
        cell.source = f"check.call(moving_average, [1, 2], 1)\n{cell.source}"
        place = next(number for number, other in enumerate(calls.cells) if other is cell)
        calls.cells[place:place] = [nbformat.v4.new_code_cell("moving_average([1, 2], 1)") for _ in range(2)]
    body = f"{IGNORE * ignore}    {WAIT}\n"
    handed_in = submission(notebook(calls, q1=HEAD + body))
    waits, wait = [], Kernel._wait
    monkeypatch.setattr(Kernel, "_wait", lambda *given: waits.append(reply := wait(*given)) or reply)
    result = grade_one(nbformat.writes(calls), handed_in, dataclasses.replace(SHORT, wall_s=250))
    assert outcomes(result, "q1") == [TIMEOUT, TIMEOUT] and outcomes(result, "q3") == [FAILED, FAILED]
    assert "moving_average was stopped before: it did not end in time" in result.of("q3")[0].message
    assert waits.count(None) == 1 + ignore, "once for the check; once more for its end, if it ignores the interrupt"


def test_a_flood_of_prints_reaches_nobody(grade: Grade) -> None:
    here = psutil.Process()
    before = here.memory_info().rss
    flood = (
        "for _ in range(2_000):\n    print('x' * 10_000)\nimport os\nos.write(1, b'z' * 10**7)\nprint('x' * 10**8)\n"
    )
    result = grade(q1=flood + MOVING_AVERAGE)
    assert result.points == 60
    assert here.memory_info().rss - before < 100 * MIB


# --- cheating ---------------------------------------------------------------------------------------------------------


def test_edited_and_deleted_checks_change_nothing(key: NotebookNode, grade: Grade) -> None:
    book = notebook(key, q1=HEAD + "    return 1\n")
    cell_of(book, "q1-values").source = "print('passed')"
    book.cells = [cell for cell in book.cells if cell is not cell_of(book, "q3-values")]
    assert points(grade(book)) == {"q1": 0, "q3": 20}


@isolated
def test_nothing_secret_is_on_the_disk(grade: Grade, tmp_path: Path) -> None:
    secret = tmp_path / "bob.ipynb"
    secret.write_text("the answers of bob", "utf-8")
    places = [str(secret), str(Path(__file__)), str(Path.home()), "/etc/shadow", "/etc/passwd"]
    look = f"""
import os
found = [place for place in {places!r} if os.path.exists(place) and (not os.path.isdir(place) or os.listdir(place))]
found = [place for place in found if place != {str(Path.home())!r}]  # parts of Python may lie below it
for parent, folders, files in os.walk("/", onerror=lambda error: None):
    if parent.startswith(("/proc", "/usr", "/dev")) or "site-packages" in parent:
        folders.clear()
        continue
    found += [os.path.join(parent, name) for name in files if name.endswith(".ipynb")]
    found += [os.path.join(parent, name) for name in folders if name in ("solutions", "tests") and "lib" not in parent]
assert not found, found
"""
    result = grade(q1=look + MOVING_AVERAGE)
    assert result.points == 60, result.notes


@isolated
def test_nothing_outside_can_be_written(grade: Grade, tmp_path: Path) -> None:
    target = tmp_path / "results" / "eve.json"
    target.parent.mkdir()
    places = [
        str(target),
        str(tmp_path / "x"),
        "/x",
        "/usr/x",
        "/etc/x",
        "/dev/x",
        "/run/x",
        f"{Path(__file__).parent}/x",
    ]
    forge = f"""
import os
done = []
for place in {places!r} + [os.path.join(os.path.dirname(check.__file__), "x.py"), check.__file__]:
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "a") as file: file.write("600")
        done += [place] * (not place.startswith("/tmp"))  # that is the sandbox's own
    except OSError: pass
assert not done, done
"""
    result = grade(q1=forge + MOVING_AVERAGE)
    assert result.points == 60, result.notes
    assert [path.name for path in tmp_path.rglob("*")] == ["results"]


PROMISES = {
    "no network but the loopback": """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 2).close()
assert [name for _, name in socket.if_nameindex()] == ["lo"]
try: socket.create_connection(("192.0.2.1", 80), 2)
except OSError as problem: assert problem.errno == 101, problem  # unreachable, at once
else: raise AssertionError
""",
    "a clean environment": """
import os
assert 'COURSE_TEST_TOKEN' not in os.environ
assert os.environ['OMP_NUM_THREADS'] == '1'
for pid in ('1', 'self'):
    try: assert b'COURSE_TEST' not in open(f'/proc/{pid}/environ', 'rb').read()
    except OSError: pass
""",
    "no privileges": """
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
assert [status[name].strip('\\t\\n0') for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')] == [''] * 5
assert int(status['NoNewPrivs']) == 1
""",
    "limits on files in memory": """
import os
sizes = []
for folder in ('/tmp', '/dev/shm'):
    try:
        for n in range(40):
            with open(f'{folder}/{n}', 'wb') as file: file.write(bytes(100 * 2**20))
    except OSError as problem: sizes.append(problem.errno)
    for n in range(40):
        if os.path.exists(f'{folder}/{n}'): os.remove(f'{folder}/{n}')
assert sizes == [28, 28], sizes  # no space left
""",
}


@isolated
@pytest.mark.parametrize("look", PROMISES.values(), ids=PROMISES)
def test_what_is_around_an_answer(grade: Grade, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    monkeypatch.setenv("COURSE_TEST_TOKEN", "secret")
    result = grade(q1=look + MOVING_AVERAGE)
    assert result.points == 60, result.notes


# --- using too much ---------------------------------------------------------------------------------------------------


BOMB = "    import os\n    while True:\n        try: os.fork()\n        except OSError: pass\n"


@isolated
def test_a_fork_bomb_hurts_nobody(grade: Grade) -> None:
    result = grade(q1=HEAD + BOMB)
    assert points(result) == {"q1": 0, "q3": 20}
    assert result.status in ("process limit", "memory limit")


@isolated
@pytest.mark.parametrize("own_session", [False, True])
def test_no_process_outlives_the_run(grade: Grade, own_session: bool) -> None:
    name = f"outlive{os.getpid()}{own_session}"
    start = "import subprocess, sys\nfor _ in range(2):\n    subprocess.Popen([sys.executable, '-c', "
    start += f"'import time; time.sleep(600) # {name}'], start_new_session={own_session})\n"
    assert grade(q1=start + MOVING_AVERAGE).points == 60
    assert not _outlived(name)


ORPHANS = """
import os, subprocess, sys, time
again = f'import subprocess, sys, time; subprocess.Popen([sys.executable, "-c", "{SLEEP}"], start_new_session=True)'
subprocess.Popen([sys.executable, '-c', again], start_new_session=True).wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        with open(PID, 'w') as file: file.write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists(PID) or not os.path.getsize(PID): time.sleep(0.01)
"""
"""Processes of other parents, by a new program with its own session, and by a fork that says nothing of its origin."""


@pytest.mark.parametrize("way", [sandbox.NONE], indirect=True)
def test_without_isolation_no_process_outlives_the_run(grade: Grade, tmp_path: Path) -> None:
    name, pid = f"unisolated{os.getpid()}", tmp_path / "pid"
    start = f"SLEEP, PID = 'import time; time.sleep(600) # {name}', {str(pid)!r}\n{ORPHANS}"
    result = grade(q1=start + MOVING_AVERAGE)
    assert (result.points, result.isolated) == (60, False)
    assert any(note.startswith("NOT ISOLATED") for note in result.notes)
    assert not _outlived(name) and (sys.platform != "linux" or not psutil.pid_exists(int(pid.read_text())))


def test_the_limit_of_the_whole_submission(grade: Grade) -> None:
    grade()  # the process that kernels are forked from has started
    limits = dataclasses.replace(QUICK, cell_s=250, wall_s=4 + 4 * grade().seconds)
    result = grade(q3=f"def half(number):\n    {WAIT}\n", limits=limits)
    assert (points(result), result.status) == ({"q1": 40, "q3": 0}, "time limit")
    assert outcomes(result, "q3") == [NOT_RUN, NOT_RUN] and outcomes(result, "q1") == [PASSED, PASSED]


def _outlived(name: str) -> list[int]:
    """The processes of that name; they have been ended by then."""
    time.sleep(0.3)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(name in part for part in process.cmdline()):
                found.append(process.pid)
                process.kill()
    return found

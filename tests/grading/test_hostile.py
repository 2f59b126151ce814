"""What hostile and broken answers must become. Each runs in a real kernel; q1 misbehaves, q3 is right."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from course_tools.author.lab_source import grade_id_of
from course_tools.grading.grade import grade_one
from course_tools.grading.report.results import DIED, FAILED, GRADED, NOT_RUN, PASSED, TAMPERED, TIMEOUT
from course_tools.grading.sandbox import processes as sandbox
from course_tools.grading.sandbox.kernel import Kernel
from course_tools.grading.sandbox.limits import MIB
from tests.grading.conftest import MOVING_AVERAGE, QUICK, WAYS, Grade, cell_of, notebook, outcomes, points, submission

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
both = pytest.mark.usefixtures("way")
"""Where it matters to what happens: sandboxed, and as a plain process. The rest runs plainly on every machine."""
HEAD = "def moving_average(numbers, width):\n"
SHORT = dataclasses.replace(QUICK, cell_s=10)
"""For answers that do not end. Honest cells beside them import torch: seconds on a busy machine."""
WAIT = "while True: __import__('time').sleep(1)"
"""A loop without end that leaves the processor to others; the one that takes it has a test of its own."""


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """What the sandbox alone can promise."""
    return both(pytest.mark.parametrize("way", WAYS[:1], indirect=True)(test))


def test_right_answers_get_full_marks(full_key: NotebookNode, way: str) -> None:
    limits = dataclasses.replace(QUICK, memory_bytes=4096 * MIB)
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key)), limits)
    assert (result.points, result.out_of, result.status) == (100, 100, GRADED)
    assert result.isolated == (way != sandbox.NONE)
    assert [note.split(":")[0] for note in result.notes] == ([] if result.isolated else ["NOT ISOLATED"])


def test_wrong_answers_lose_their_points_and_say_why(grade: Grade) -> None:
    result = grade(q1=HEAD + "    return [1.5, 2.5]  # what the public check wants\n")
    assert points(result) == {"q1": 20, "q3": 20}
    assert [check.message for check in result.of("q1")] == ["", ""], "a hidden check says nothing"
    result = grade(q1=HEAD + "    return [1.5]\n")
    assert (
        "expected  2 entries" in result.of("q1")[0].message
        and "where the last window ends" in result.of("q1")[0].message
    )


def test_deadlocked_ranks_cost_their_question_and_bounded_time(full_key: NotebookNode) -> None:
    answer = (
        "def mean_of_ranks(value):\n    if dist.get_rank() == 0:\n        dist.all_reduce(value)\n    return value\n"
    )
    limits = dataclasses.replace(QUICK, memory_bytes=4096 * MIB)
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key, q2=answer)), limits)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert "waits in all_reduce" in result.of("q2")[0].message


@both
def test_ranks_that_never_return_cost_the_limit_once(full_key: NotebookNode) -> None:
    answer = "def mean_of_ranks(value):\n    import time\n    time.sleep(1000)\n"
    limits = dataclasses.replace(QUICK, cell_s=15, memory_bytes=4096 * MIB)
    result = grade_one(nbformat.writes(full_key), submission(notebook(full_key, q2=answer)), limits)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert outcomes(result, "q2") == [TIMEOUT, TIMEOUT]
    assert result.of("q2")[1].message.startswith("not run")


def test_ranks_that_run_out_of_time_cost_their_question(full_key: NotebookNode) -> None:
    answer = "def mean_of_ranks(value):\n    import time\n    time.sleep(1000)\n"
    impatient = copy.deepcopy(full_key)
    check = cell_of(impatient, "q2-values")
    check.source = check.source.replace("world_size=2)", "world_size=2, timeout_s=2)")
    limits = dataclasses.replace(QUICK, memory_bytes=4096 * MIB)
    result = grade_one(nbformat.writes(impatient), submission(notebook(full_key, q2=answer)), limits)
    assert points(result) == {"q1": 40, "q2": 0, "q3": 20}
    assert outcomes(result, "q2") == [FAILED, TIMEOUT]
    assert [note.split(":")[0] for note in result.notes] == ["NOT ISOLATED"]


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


@both
@pytest.mark.parametrize("loop", ["while True: pass", "__import__('time').sleep(10**6)"])
def test_a_loop_costs_its_question_and_its_time_once(grade: Grade, loop: str) -> None:
    result = grade(q1=f"{HEAD}    {loop}\n", limits=SHORT)
    assert points(result) == {"q1": 0, "q3": 20}
    assert outcomes(result, "q1") == [TIMEOUT, TIMEOUT]
    assert [row.message[:7] for row in result.of("q1")] == ["it did ", "not run"]
    assert result.seconds < 3 * SHORT.cell_s + 60


@both
@pytest.mark.parametrize("ignore", [False, True])
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
    body = "    import signal\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * ignore + f"    {WAIT}\n"
    handed_in = submission(notebook(calls, q1=HEAD + body))
    waits, wait = [], Kernel._wait
    monkeypatch.setattr(Kernel, "_wait", lambda *given: waits.append(reply := wait(*given)) or reply)
    result = grade_one(nbformat.writes(calls), handed_in, dataclasses.replace(QUICK, cell_s=8, wall_s=250))
    assert outcomes(result, "q1") == [TIMEOUT, TIMEOUT] and outcomes(result, "q3") == [FAILED, FAILED]
    assert "moving_average was stopped before: it did not end in time" in result.of("q3")[0].message
    assert waits.count(None) == 1 + ignore, "once for the check; once more for its end, if it ignores the interrupt"


@both
def test_a_loop_that_ignores_interrupts_is_killed(grade: Grade) -> None:
    body = f"    import signal\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    {WAIT}\n"
    result = grade(q1=HEAD + body, limits=SHORT)
    assert points(result) == {"q1": 0, "q3": 20}
    assert "did not stop when interrupted" in result.of("q1")[0].message


@both
def test_a_loop_in_the_cell_of_an_answer(grade: Grade) -> None:
    result = grade(q1=f"{MOVING_AVERAGE}\n{WAIT}\n", limits=SHORT)
    assert points(result) == {"q1": 40, "q3": 20}, "the function is there, only the cell did not end"
    assert any(f"was stopped after {SHORT.cell_s:g} s" in note for note in result.notes)


@both
@pytest.mark.parametrize("body", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_dead_kernel_costs_only_its_question(grade: Grade, body: str) -> None:
    result = grade(q1=f"{HEAD}    {body}\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert outcomes(result, "q1") == [DIED, DIED]


def test_a_kernel_that_dies_in_the_cell_of_an_answer(grade: Grade) -> None:
    result = grade(q1=f"{MOVING_AVERAGE}\nimport os\nos._exit(0)\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert outcomes(result, "q1") == [DIED, DIED]


def test_sys_exit_is_a_wrong_answer(grade: Grade) -> None:
    result = grade(q1=HEAD + "    import sys\n    sys.exit(0)\n")
    assert (points(result), outcomes(result, "q1")) == ({"q1": 0, "q3": 20}, [FAILED, FAILED])
    assert points(grade(q1=f"{MOVING_AVERAGE}\nimport sys\nsys.exit(0)\n")) == {"q1": 40, "q3": 20}


def test_a_syntax_error_costs_only_its_question(grade: Grade) -> None:
    result = grade(q1="def moving_average(numbers, width:\n    return 1\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert any("SyntaxError" in note for note in result.notes)


def test_an_import_that_fails_costs_only_its_question(grade: Grade) -> None:
    result = grade(q1="import no_such_module\n" + MOVING_AVERAGE)
    assert points(result) == {"q1": 0, "q3": 20}
    assert result.of("q1")[0].message.endswith("answers this question ended with ModuleNotFoundError")


def test_stderr_is_harmless(grade: Grade) -> None:
    noise = "import sys, os, warnings\nprint('hello', file=sys.stderr)\nwarnings.warn('x')\nos.write(2, b'y')\n"
    assert grade(q1=noise + MOVING_AVERAGE).points == 60


def test_a_flood_of_prints_reaches_nobody(grade: Grade) -> None:
    here = psutil.Process()
    before = here.memory_info().rss
    flood = (
        "for _ in range(2_000):\n    print('x' * 10_000)\nimport os\nos.write(1, b'z' * 10**7)\nprint('x' * 10**8)\n"
    )
    result = grade(q1=flood + MOVING_AVERAGE)
    assert result.points == 60
    assert here.memory_info().rss - before < 100 * MIB


def test_an_error_of_a_hundred_megabytes_is_not_kept(grade: Grade) -> None:
    result = grade(q1=HEAD + "    raise AssertionError('x' * 10**8)\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert len(result.of("q1")[0].message) < 2100


# --- cheating ---------------------------------------------------------------------------------------------------------


def test_an_object_that_is_equal_to_everything(grade: Grade) -> None:
    text = "class Yes(list):\n    def __eq__(self, other): return True\n    def __len__(self): return 2\n"
    result = grade(q1=text + HEAD + "    return Yes()\n")
    assert points(result) == {"q1": 0, "q3": 20}


def test_names_of_the_lab_are_restored(grade: Grade) -> None:
    fake = "class check:\n    equal = call = staticmethod(lambda *a, **k: None)\n"
    reference = "def reference(number): return None\n"
    result = grade(q1=f"{fake}{HEAD}    return 1\n", q3=f"{fake}{reference}def half(number): return None\n")
    assert (result.points, result.status) == (0, GRADED)
    assert grade(q1=MOVING_AVERAGE + "\ncheck = 7\n").points == 60, "an accident does no harm"


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


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_tampering_costs_everything(grade: Grade, cheat: str) -> None:
    result = grade(q1=f"{cheat}{HEAD}    return 1\n")
    assert (result.points, result.status) == (0, TAMPERED)
    assert {check.outcome for check in result.checks} == {TAMPERED}
    assert any("tampered" in note for note in result.notes)


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


@isolated
def test_there_is_no_network_but_the_loopback(grade: Grade) -> None:
    net = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 2).close()
assert [name for _, name in socket.if_nameindex()] == ["lo"]
try: socket.create_connection(("192.0.2.1", 80), 2)
except OSError as problem: assert problem.errno == 101, problem  # unreachable, at once
else: raise AssertionError
"""
    assert grade(q1=net + MOVING_AVERAGE).points == 60


@isolated
def test_the_environment_is_clean(grade: Grade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_TEST_TOKEN", "secret")
    look = "import os\nassert 'COURSE_TEST_TOKEN' not in os.environ\nassert os.environ['OMP_NUM_THREADS'] == '1'\n"
    look += "try: assert b'COURSE_TEST' not in open('/proc/1/environ', 'rb').read()\nexcept OSError: pass\n"
    assert grade(q1=look + MOVING_AVERAGE).points == 60


@isolated
def test_there_are_no_privileges(grade: Grade) -> None:
    look = "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
    look += "assert int(status['CapEff'], 16) == 0 and int(status['NoNewPrivs']) == 1\n"
    assert grade(q1=look + MOVING_AVERAGE).points == 60


# --- using too much ---------------------------------------------------------------------------------------------------


@both
def test_one_process_that_wants_too_much_memory(grade: Grade) -> None:
    result = grade(q1=HEAD + "    return [bytearray(10**11)]\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert "MemoryError" in result.of("q1")[0].message


@both
def test_many_processes_that_together_want_too_much_memory(grade: Grade) -> None:
    hog = "    import os, time\n    for _ in range(6):\n        if os.fork() == 0:\n"
    hog += "            held = bytearray(b'x') * (400 * 2**20)\n            time.sleep(60)\n            os._exit(0)\n"
    result = grade(q1=f"{HEAD}{hog}    time.sleep(60)\n")
    assert points(result) == {"q1": 0, "q3": 20}
    assert (result.status, outcomes(result, "q1")) == ("memory limit", [DIED, DIED])


@isolated
def test_files_in_memory_are_limited(grade: Grade) -> None:
    fill = "import os\nsizes = []\nfor folder in ('/tmp', '/dev/shm'):\n    try:\n        for n in range(40):\n"
    fill += "            with open(f'{folder}/{n}', 'wb') as file: file.write(bytes(100 * 2**20))\n"
    fill += "    except OSError as problem: sizes.append(problem.errno)\n"
    fill += "    for n in range(40):\n        if os.path.exists(f'{folder}/{n}'): os.remove(f'{folder}/{n}')\n"
    fill += "assert sizes == [28, 28], sizes  # no space left\n"
    result = grade(q1=fill + MOVING_AVERAGE)
    assert result.points == 60, result.notes


BOMB = "    import os\n    while True:\n        try: os.fork()\n        except OSError: pass\n"


@isolated
def test_a_fork_bomb_hurts_nobody(grade: Grade) -> None:
    start = time.monotonic()
    result = grade(q1=HEAD + BOMB)
    assert points(result) == {"q1": 0, "q3": 20}
    assert result.status in ("process limit", "memory limit") and time.monotonic() - start < 100


@isolated
@pytest.mark.parametrize("own_session", [False, True])
def test_no_process_outlives_the_run(grade: Grade, own_session: bool) -> None:
    name = f"outlive{os.getpid()}{own_session}"
    start = "import subprocess, sys\nfor _ in range(2):\n    subprocess.Popen([sys.executable, '-c', "
    start += f"'import time; time.sleep(600) # {name}'], start_new_session={own_session})\n"
    assert grade(q1=start + MOVING_AVERAGE).points == 60
    assert not _outlived(name)


def test_without_isolation_no_process_outlives_the_run(grade: Grade) -> None:
    name = f"unisolated{os.getpid()}"
    start = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import subprocess, sys, time; "
    start += (
        f'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # {name}"], start_new_session=True)'
    )
    start += "'], start_new_session=True).wait()\n"
    result = grade(q1=start + MOVING_AVERAGE)
    assert (result.points, result.isolated) == (60, False)
    assert any(note.startswith("NOT ISOLATED") for note in result.notes)
    assert not _outlived(name)


@both
def test_the_limit_of_the_whole_submission(grade: Grade) -> None:
    usual_s = grade().seconds  # on this machine, now
    limits = dataclasses.replace(QUICK, cell_s=250, wall_s=10 + 2 * usual_s)
    result = grade(q3=f"def half(number):\n    {WAIT}\n", limits=limits)
    assert (points(result), result.status) == ({"q1": 40, "q3": 0}, "time limit")
    assert outcomes(result, "q3") == [NOT_RUN, NOT_RUN] and outcomes(result, "q1") == [PASSED, PASSED]
    assert result.seconds < limits.wall_s + 60


def test_a_message_never_quotes_a_hidden_test(grade: Grade) -> None:
    spy = "def half(number):\n    import linecache\n    text = str([linecache.cache[k] for k in linecache.cache])\n"
    spy += "    raise AssertionError(text[text.find('one window of three, a secret') - 100:][:400])\n"
    result = grade(q3=spy)
    assert "secret" not in str(result)


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

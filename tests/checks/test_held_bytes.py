"""Bytes outside of PyTorch: what an answer hides in NumPy and bytes objects counts, what measures it does not."""

import io
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from course_kit import measure, ranks
from course_kit.checks import check, held_bytes
from course_kit.checks.held_bytes import BLOCK, outside_torch
from course_kit.units import Bytes

X = torch.ones(256, 256)  # large beside a table of the interpreter that may grow meanwhile


@pytest.fixture
def folder_of_its_own(tmp_path, monkeypatch) -> Path:
    """Here nobody else writes files, of which an answer's could not be told."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_line_that_took_it_is_named_and_a_sum_has_the_lines_of_both():
    with outside_torch() as outside, measure.memory(inputs=X, lines=True) as record:
        kept = [X.numpy().tobytes(), X.clone()]
        found, copied = outside(), check.held(record, "now")
    (line,) = found.lines
    assert "kept = [X.numpy().tobytes()" in line and found.lines[line] == found == len(kept[0]) + sys.getsizeof(b"")
    (other,) = copied.lines
    assert (copied + found).lines == {line: found, other: X.nbytes} and (copied - found).lines == copied.lines
    assert "of which" in (found + copied).words and line in (found + copied - 5).words


def in_small_pieces(x: torch.Tensor) -> list[bytes]:
    """A line of a cell that takes many small blocks."""
    names: dict[str, object] = {"data": x.numpy().tobytes()}
    text = "kept = [data[at : at + 1000] for at in range(0, len(data), 1000)]\ndel data"
    exec(compile(text, "/tmp/ipykernel_1/7.py", "exec"), names)
    return names["kept"]  # type: ignore[return-value]


def into_a_file(x: torch.Tensor) -> object:
    """A file that is gone when nobody has it open any more."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(x.numpy().tobytes())
    file.flush()
    return file


def into_shared_memory(x: torch.Tensor) -> mmap.mmap:
    place = mmap.mmap(-1, x.nbytes)
    place.write(x.numpy().tobytes())
    return place


def behind_the_record(x: torch.Tensor) -> torch.Tensor:
    with _disable_current_modes():
        return x.clone()


HIDES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an array": lambda x: x.numpy().copy(),
    "bytes": lambda x: x.numpy().tobytes(),
    "a bytearray": lambda x: bytearray(x.numpy()),
    "a conversion": lambda x: x.half().numpy().astype("float32"),
    "a file in memory": lambda x: torch.save(x, file := io.BytesIO()) or file,
    "small pieces": in_small_pieces,
    "a file": into_a_file,
    "shared memory": into_shared_memory,
    "no modes": behind_the_record,
}


@pytest.mark.parametrize("way", HIDES)
def test_what_no_record_sees_counts_as_long_as_it_is_held(way, folder_of_its_own):
    with outside_torch() as outside, measure.memory(inputs=X) as record:
        assert outside() == 0
        kept = HIDES[way](X)
        assert isinstance(outside(), Bytes) and X.nbytes <= outside() < 1.2 * X.nbytes
        assert record.now.total == X.nbytes
        if not isinstance(kept, io.BytesIO):
            getattr(kept, "close", int)()
        del kept
        assert outside() == 0


def test_a_tensor_that_gets_the_place_of_one_that_was_there_counts():
    there_before = [torch.empty(256, 256) for _ in range(100)]
    with outside_torch() as outside:
        there_before.clear()
        kept = [torch.empty(256, 256) for _ in range(100)]
        assert outside() == sum(each.nbytes for each in kept)


class SaysNothing(torch.Tensor):
    """A tensor that answers each question with another tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.tensor(False)


def test_a_tensor_of_its_own_kind_counts_whatever_it_says():
    before = torch.ones(256, 256).as_subclass(SaysNothing)
    with outside_torch() as outside:
        kept = torch.ones(256, 256).as_subclass(SaysNothing)
        assert outside() == X.nbytes
        del before, kept
        assert outside() == 0


def test_a_saved_tensor_counts_until_its_file_is_removed(folder_of_its_own):
    with outside_torch() as outside, measure.memory(inputs=X):
        torch.save(X, "hidden.pt")
        assert outside() >= X.nbytes
        Path("hidden.pt").unlink()
        assert outside() < BLOCK


def test_a_log_that_was_open_before_does_not_count_however_long_it_is(folder_of_its_own):
    with open(folder_of_its_own / "log.txt", "wb+") as log:
        log.write(bytes(X.nbytes))
        log.flush()
        with outside_torch() as outside, tempfile.TemporaryFile(buffering=0) as file:
            file.write(bytes(X.nbytes))
            file.truncate(0)  # this process has written so much, and it is gone
            log.write(b"." * 100)
            log.flush()
            assert outside() == 0
            log.write(bytes(X.nbytes))
            log.flush()
            assert X.nbytes <= outside() < 1.2 * X.nbytes


WRITES = "import sys; open(sys.argv[1], 'wb').write(bytes(2**20))"


def beside_a_rank_that_is_asleep(folder: str, own: bool) -> int:
    """What counts on rank 1 while 4 MB of its message wait in the kernel, and it, or somebody, writes 1 MiB."""
    me, tempfile.tempdir = dist.get_rank(), folder
    pids, message = torch.tensor([os.getpid() * (rank == me) for rank in range(2)]), torch.zeros(2**20)
    received = None if me else dist.irecv(message, 1)
    dist.all_reduce(pids)
    if received is not None:
        received.wait()
        return 0
    with outside_torch() as outside:
        os.kill(int(pids[0]), signal.SIGSTOP)
        sent = dist.isend(message, 0)
        other = None if own else subprocess.Popen([sys.executable, "-c", WRITES, f"{folder}/file"])
        if own:
            Path(folder, "file").write_bytes(bytes(2**20))
        while not (Path(folder, "file").exists() and Path(folder, "file").stat().st_size == 2**20):
            time.sleep(0.01)
        found = int(outside())  # what a child has written counts as its parent's when that has waited for it
        os.kill(int(pids[0]), signal.SIGCONT)
    _ = sent.wait() if sent else None, other.wait() if other else None
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what was written")
@pytest.mark.parametrize(("own", "bounds"), [(False, (0, 0)), (True, (2**20, 1.2 * 2**20))], ids=["no", "its own"])
def test_a_file_counts_by_what_was_written_and_not_for_a_message_that_waits(own, bounds, tmp_path):
    """On a busy machine a right answer had handed over more than was sent, and somebody's file had grown beside it."""
    assert bounds[0] <= ranks.run(beside_a_rank_that_is_asleep, str(tmp_path), own, world_size=2)[1] <= bounds[1]


def test_a_connection_that_is_closed_takes_its_bytes_along(monkeypatch):
    open_ones = iter([{("a", "b"): 10**6}, {}])
    monkeypatch.setattr(held_bytes, "bytes_handed_over", lambda: next(open_ones))
    assert held_bytes._written_since(held_bytes._written()) < BLOCK


def test_tensors_and_the_record_of_them_do_not_count():
    with outside_torch() as outside, measure.memory(inputs=X) as record:
        leaf = X.clone().requires_grad_()
        kept = [leaf]
        for _ in range(100):
            kept.append(kept[-1].sin())
        kept[-1].sum().backward()
        named = dict.fromkeys(map(str, range(80)), 0.0)
        assert record.now.total > 100 * X.nbytes and len(named) == 80
        assert outside() == 0


def test_what_pytorch_remembers_for_itself_does_not_count_and_numbers_in_a_list_do():
    with outside_torch() as outside:
        names: dict[str, bytes] = {}
        exec(compile("table = bytes(2**16)", "/lib/site-packages/torch/_library/registry.py", "exec"), names)
        assert outside() == 0
        exec(compile("kept = bytes(2**16)", "/tmp/ipykernel_1/7.py", "exec"), names)
        assert outside() >= 2**16
        kept = X.flatten().tolist()
        assert outside() >= 2**16 + 8 * len(kept)


def test_what_a_check_prints_into_a_buffer_does_not_count(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with outside_torch() as outside:
        for _ in range(1000):
            check.that(True, "what a check says is not held by whoever is checked")
        assert outside() == 0 and len(sys.stdout.getvalue()) > 2**15  # type: ignore[attr-defined]


def test_the_table_of_files_that_a_count_keeps_does_not_count():
    """It grew by 12 KiB with its 342nd name, and an honest answer lost its points."""
    held_bytes._is_cell.cache_clear()
    kept: list[bytes] = []
    with outside_torch() as outside:
        for number in range(400):
            exec(compile("kept.append(bytes(100))", f"/lib/file{number}.py", "exec"), {"kept": kept})
        assert [outside(), outside()] == [0, 0] and held_bytes._is_cell.cache_info().currsize > 400


def test_whoever_traces_already_goes_on_tracing():
    tracemalloc.start()
    try:
        earlier = bytes(2**16)
        with outside_torch() as outside:
            assert outside() == 0
        assert tracemalloc.is_tracing() and len(earlier) == 2**16
    finally:
        tracemalloc.stop()
    with outside_torch():
        assert tracemalloc.is_tracing()
    assert not tracemalloc.is_tracing()


LATE = """
import ctypes, sys, time
from course_kit.checks.held_bytes import outside_torch

sys.setswitchinterval(10)  # seconds: whoever waits for Python's lock gets it when it is let go, and not before
start_thread = ctypes.PyDLL(None).pthread_create  # and the lock is kept
take = ctypes.cast(ctypes.pythonapi.PyMem_RawMalloc, ctypes.c_void_p)
with outside_torch():
    start_thread(ctypes.byref(ctypes.c_ulong()), None, take, ctypes.c_void_p(64))
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        pass
time.sleep(0.2)
print("alive")
"""


@pytest.mark.nightly  # a race, tried many times
@pytest.mark.skipif(sys.platform != "linux", reason="starts a thread by the name that Linux has for it")
def test_a_thread_that_notes_what_it_takes_when_the_count_ends_does_not_crash():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr

"""What the page stored is what is measured: other libraries' restarts, file formats, memory, near duplicates."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course_kit import ranks
from course_pages.lesson15 import cluster, elsewhere, encoder, memory, runs, turns

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("library", "after"), elsewhere.STORED)
def test_a_stored_restart_is_what_the_library_does(library: str, after: int) -> None:
    pytest.importorskip(library)
    assert elsewhere.restart(library, after) == elsewhere.STORED[library, after]


def test_workers_that_do_not_ask_read_everything() -> None:
    assert sorted(elsewhere.read_by_workers(elsewhere.Stride(0, 1), 2)) == sorted([*range(40)] * 2)
    assert sorted(elsewhere.read_by_workers(elsewhere.Stride(0, 1, asks=True), 2)) == list(range(40))


def test_formats_hold_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tokens = np.frombuffer(cluster.text.python_manual().data, np.uint8).astype("<u2")
    mapped_by_the_page = tmp_path / "tokens.bin"
    mapped_by_the_page.write_bytes(b"12")
    files = elsewhere.write_formats(tmp_path, tokens)
    assert mapped_by_the_page.read_bytes() == b"12", "a file that shrinks under a map kills the process that reads on"
    assert files["raw"].stat().st_size + 128 == files[".npy"].stat().st_size
    for name, path in files.items():
        before = elsewhere.allocated()
        opened = elsewhere.open_format(name, path)
        assert np.array_equal(opened, tokens)
        mapped, resident = memory.mapped_and_resident(path)
        is_a_map = name != "Parquet"
        assert (elsewhere.allocated() - before > len(tokens)) == (not is_a_map)
        assert elsewhere.ALLOCATED_STORED.get(name, 0) <= elsewhere.allocated() - before
        if memory.COUNTS:
            assert (mapped >= 2 * len(tokens), resident >= 2 * len(tokens)) == (is_a_map, is_a_map)
        del opened
    for name, stored in elsewhere.FORMATS_STORED.items():
        assert files[name].stat().st_size / len(tokens) == pytest.approx(stored, rel=0.05)


@pytest.mark.skipif(not memory.COUNTS, reason="the kernel tells no pages")
def test_stored_memory_is_what_the_kernel_counts() -> None:
    found = memory.held_and_copied()
    for name, stored in memory.STORED.items():
        assert float(found[name]) == pytest.approx(stored, rel=0.06, abs=2**20)


def test_near_duplicates_resemble_each_other() -> None:
    pytest.importorskip("datasketch")
    signed = [(document, cluster.signature(document)) for document in sorted(set(cluster.documents()))]
    pairs = cluster.near_duplicates(signed)
    assert all(cluster.jaccard(*pair) > 0.6 for pair in pairs)
    assert cluster.STORED / 2 <= len(pairs) <= 2 * cluster.STORED
    if sys.version_info[:3] == (3, 11, 7):  # whose manual it is
        assert len(pairs) == cluster.STORED


def test_an_encoder_loses_no_byte_and_merges_what_is_frequent() -> None:
    merges = encoder.learn("low lower lowest slow", merges=4)
    assert list(merges)[:2] == [(b"o", b"w"), (b"l", b"ow")]
    assert encoder.encode("slower ow", merges)[-1] == b"ow"
    assert b"".join(encoder.encode("slower ow", merges)) == b"slowerow"
    assert encoder.merged([b"a", b"a", b"a"], (b"a", b"a")) == [b"aa", b"a"]


@pytest.mark.parametrize("library", elsewhere.STORED_WITH)
def test_what_is_stored_is_of_the_versions_that_are_tested_here(library: str) -> None:
    pytest.importorskip(library)
    assert elsewhere.named(library) == f"{library} {elsewhere.STORED_WITH[library]}"


def test_clocks_count_work() -> None:
    assert runs.cpu_seconds(lambda: sum(range(100_000)), repeats=2) > 0


def test_a_threads_own_time_is_not_what_others_took(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = iter((1.0, 1.0 + 0.04))  # 40 of the next 50 ms this thread was ready, and had no core
    monkeypatch.setattr(runs, "_kept_waiting_s", lambda: next(kept))
    clock = iter((7.0, 7.05))
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert runs.own_seconds(int) == pytest.approx(0.01)


def test_restarts_are_counted_by_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is killed once and goes on five times; one diary has a sample twice, another one two that swapped."""
    whole, calls, copied = torch.arange(6).view(3, 2), [], []
    twice, swapped = torch.tensor([[0, 0], [2, 3], [4, 5]]), torch.tensor([[1, 0], [2, 3], [4, 5]])

    def run(train: object, file: Path, workers: int, kill_at: int | None = None, *, world_size: int, **_: object):
        calls.append((kill_at, workers, world_size))
        if kill_at is None:
            copied.append(file.exists())
            return [{(1, 2): twice, (2, 8): swapped}.get((int(file.name[0]), world_size), whole)]
        if kill_at > 0:
            file.write_bytes(b"saved")
        raise ranks.RankFailure("killed", [SimpleNamespace(), SimpleNamespace(exit_code=-signal.SIGKILL)])  # type: ignore

    monkeypatch.setattr(runs.ranks, "run", run)
    seen = runs.restarts(run, tmp_path, whole)
    assert {name: int(n) for name, n in seen.items()} == {"lost": 1, "twice": 1, "another order": 2}
    assert [call[0] for call in calls if call[0] is not None] == [0, 1, 2], "each step is killed"
    assert [call[1:] for call in calls if call[0] is None] == [
        (1 + 2 * (step % 2), p) for step in range(3) for p in (1, 2, 3, 4, 8)
    ]
    assert copied == [False] * 5 + [True] * 10, "what was saved goes on, and each restart has a copy of its own"


def test_a_queue_that_waits_for_the_wrong_shelf_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader's cell would never end."""

    def waits_forever(work: Callable[[int], int], jobs: range, workers: int, depth: int = 2) -> Iterator[int]:
        yield work(jobs[0])
        threading.Event().wait()

    monkeypatch.setattr(turns, "PATIENCE_S", 0.5)
    with pytest.raises(AssertionError, match="no further result came"):
        turns.check_prefetch(waits_forever)


def test_without_the_extras_stored_rows_are_shown(tmp_path: Path) -> None:
    """With none of the libraries there, the module imports, writes two formats, and says what it knows."""
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys(("pyarrow", "torchdata", "datasets", "datasketch", "distributed", "dask")))
        import numpy as np
        from pathlib import Path
        from course_pages.lesson15 import cluster, elsewhere
        print(any(map(elsewhere.installed, ("pyarrow", "torchdata", "datasets", "datasketch", "distributed"))))
        print(*elsewhere.write_formats(Path({str(tmp_path)!r}), np.arange(9)), elsewhere.allocated())
        print(elsewhere.named("datasets"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True)
    stored = "datasets 5.2.0 (not installed here; stored, November 2026)"
    assert done.stdout.splitlines() == ["False", "raw .npy 0", stored], done.stderr

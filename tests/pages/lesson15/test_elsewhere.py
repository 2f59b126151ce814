"""What the page stored is what is measured: other libraries' restarts, file formats, memory, near duplicates."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from course_pages.lesson15 import cluster, elsewhere, encoder, memory, runs

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("library", "after"), elsewhere.STORED)
def test_a_stored_restart_is_what_the_library_does(library: str, after: int) -> None:
    pytest.importorskip(library)
    assert elsewhere.restart(library, after) == elsewhere.STORED[library, after]


def test_workers_that_do_not_ask_read_everything() -> None:
    assert sorted(elsewhere.read_by_workers(elsewhere.Stride(0, 1), 2)) == sorted([*range(40)] * 2)
    assert sorted(elsewhere.read_by_workers(elsewhere.SharedStride(0, 1), 2)) == list(range(40))


def test_formats_hold_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tokens = np.frombuffer(cluster.text.python_manual().data, np.uint8).astype("<u2")
    files = elsewhere.write_formats(tmp_path, tokens)
    assert files["raw"].stat().st_size + 128 == files[".npy"].stat().st_size
    for name, path in files.items():
        opened = elsewhere.open_format(name, path)
        assert np.array_equal(opened if name in ("raw", ".npy") else opened["tokens"].to_numpy(), tokens)
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
    if sys.version_info[:2] == (3, 11):
        assert abs(len(pairs) - cluster.STORED) <= 3


def test_an_encoder_loses_no_byte_and_merges_what_is_frequent() -> None:
    merges = encoder.learn("low lower lowest slow", merges=4)
    assert list(merges)[:2] == [(b"o", b"w"), (b"l", b"ow")]
    assert encoder.encode("slower ow", merges)[-1] == b"ow"
    assert b"".join(encoder.encode("slower ow", merges)) == b"slowerow"
    assert encoder.merged([b"a", b"a", b"a"], (b"a", b"a")) == [b"aa", b"a"]


def test_clocks_count_work() -> None:
    assert runs.cpu_seconds(lambda: sum(range(100_000)), repeats=2) > 0
    assert runs.seconds_on_ranks(lambda rank: sum(range(1000 * rank)), world_size=2, repeats=1) > 0


def test_without_the_extras_stored_rows_are_shown(tmp_path: Path) -> None:
    """With none of the libraries there, the module imports, writes two formats, and says what it knows."""
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys(("pyarrow", "torchdata", "datasets", "datasketch", "distributed", "dask")))
        import numpy as np
        from pathlib import Path
        from course_pages.lesson15 import cluster, elsewhere
        print(any(map(elsewhere.installed, ("pyarrow", "torchdata", "datasets", "datasketch", "distributed"))))
        print(*elsewhere.write_formats(Path({str(tmp_path)!r}), np.arange(9)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "raw .npy"], done.stderr

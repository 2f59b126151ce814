"""Every test that is marked `gpu`, on simulated cards: the tests are those that a real card runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu import build
from tests.simulated_gpu.cards import H100, T4, Machine

READS = ("tests/**/test_*.py", "tests/simulated_gpu/device/*", "tests/simulated_gpu/site/*")
ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", "--tb=short"]
NOT_SEEN = {
    "fused": "fused attention is written out",
    "test_the_real_one_takes_the_same": "there are no segments",
}
"""Parts of names of tests, and why they say nothing here."""
pytestmark = pytest.mark.simulated


def marked(*, with_ranks: bool) -> list[str]:
    """The files of tests with such a marker; those alone that start ranks."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    texts = {path: path.read_text("utf-8") for path in files}
    return [str(path) for path, text in texts.items() if "mark.gpu" in text and ("ranks.run" in text or not with_ranks)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [T4, H100, T4.times(2), T4.times(4)], ids=lambda machine: machine.words)
def test_what_is_marked_for_a_gpu_passes_on_a_simulated_one(machine: Machine) -> None:
    files = marked(with_ranks=machine.gpus > 1)
    command = [*PYTEST, "-m", "gpu", "-k", f"not ({' or '.join(NOT_SEEN)})", *files]
    ran = subprocess.run(command, cwd=ROOT, env=machine.environment(build.built()), capture_output=True, text=True)
    print(f"{machine.name}, {machine.gpus} of them:{ran.stdout[-3000:]}")
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert ran.returncode == 0 and passed, f"{ran.stdout[-8000:]}\n{ran.stderr[-2000:]}"
    assert int(passed[1]) >= {1: 60, 2: 6, 4: 11}[machine.gpus], "too many are skipped"

"""Every test that is marked `gpu`, on simulated cards: the tests are those that a real card runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu import build
from tests.simulated_gpu.cards import H100, T4, Machine

READS = ("tests/**/test_*.py",)
ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", "--tb=short"]
NOT_SEEN = {
    "fused": "fused attention is written out",
    "test_the_real_one_takes_the_same": "there are no segments",
}
"""Parts of names of tests, and why they say nothing here."""
pytestmark = pytest.mark.simulated


def marked() -> list[Path]:
    """The files of tests with such a marker."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    return [path for path in files if "mark.gpu" in path.read_text("utf-8")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [T4, H100, T4.times(2), T4.times(4)], ids=lambda machine: machine.words)
def test_what_is_marked_for_a_gpu_passes_on_a_simulated_one(machine: Machine) -> None:
    command = [*PYTEST, "-m", "gpu", "-k", f"not ({' or '.join(NOT_SEEN)})", *map(str, marked())]
    ran = subprocess.run(command, cwd=ROOT, env=machine.environment(build.built()), capture_output=True, text=True)
    print(f"{machine.name}, {machine.gpus} of them:{ran.stdout[-3000:]}")
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert ran.returncode == 0 and passed, f"{ran.stdout[-8000:]}\n{ran.stderr[-2000:]}"
    assert int(passed[1]) > 40

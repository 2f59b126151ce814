"""Memory as the kernel counts it: mapped and resident pages of a file, pages that a forked process had to copy.

python -m course_pages.lesson15.memory        # in a process of its own, which forks; prints four numbers
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from course_kit.units import Bytes

COUNTS = Path("/proc/self/smaps_rollup").exists()
"""Whether the kernel tells these numbers; Linux does, macOS and Windows do not."""
TOKENS = 1_000_000
STORED = {"list, held": 40_378_368, "list, copied": 32_309_248, "array, held": 2_002_944, "array, copied": 0}
"""The four numbers of `held_and_copied` on Linux 6, x86-64, Python 3.11.7, NumPy 2.4.6, November 2026."""
TOLD = "counted here" if COUNTS else "stored: Linux 6, Python 3.11.7, November 2026"


def mapped_and_resident(path: str | Path) -> tuple[Bytes, Bytes]:
    """Bytes of a file that this process has mapped, and those of them that lie in main memory now.

    Where the kernel does not tell, both are 0.
    """
    found, ours = {"Size:": 0, "Rss:": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines() if COUNTS else []:
        name, *rest = line.split()
        if not name.endswith(":"):
            ours = line.endswith(str(path))
        elif ours and name in found:
            found[name] += int(rest[0])
    return Bytes(1024 * found["Size:"]), Bytes(1024 * found["Rss:"])


def held_and_copied() -> dict[str, Bytes]:
    """Main memory of a million tokens as a list and as an array, and the bytes of them that a forked reader copies.

    The numbers are measured in a fresh process; where the kernel does not count, they are `STORED`.
    """
    if not COUNTS:
        return {name: Bytes(n) for name, n in STORED.items()}
    command = [sys.executable, "-m", "course_pages.lesson15.memory"]
    folder = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, env=os.environ | folder, capture_output=True, text=True, check=True).stdout
    return {name: Bytes(n) for name, n in json.loads(told).items()}


def _counted(*kinds: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))


def _copied(data: Any, read: Callable[[Any], Any]) -> int:
    """Bytes that became a forked process's own while it read `data`, and did nothing else."""
    out, into = os.pipe()
    if os.fork() == 0:
        before = _counted("Private")
        read(data)
        os.write(into, str(_counted("Private") - before).encode())
        os._exit(0)
    os.close(into)
    os.wait()
    return int(os.read(out, 64))


def _main() -> None:
    base = _counted("Rss")
    listed = [1000 + token % 40_000 for token in range(TOKENS)]  # above 256, where each number is an object of its own
    held = {"list, held": _counted("Rss") - base}
    held["list, copied"] = _copied(listed, lambda tokens: [None for _ in tokens].clear())
    base = _counted("Rss")
    array = np.array(listed, dtype="<u2")
    held |= {"array, held": _counted("Rss") - base, "array, copied": _copied(array, lambda tokens: tokens.sum())}
    print(json.dumps(held))


if __name__ == "__main__":
    _main()

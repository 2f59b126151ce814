"""The simulated machines: how many GPUs of which kind, and the environment that makes a process one.

Imports neither torch nor the course: `site/sitecustomize.py` asks before anything else is there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

GPU, LIBRARY = "SIMULATED_GPU", "SIMULATED_GPU_LIBRARY"
"""Variables: the machine, such as `4 T4`, and the file of the built library."""
HERE = Path(__file__).parent
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """A machine with GPUs of one kind.

    Attributes:
        card: what its name says behind "simulated".
        capability: the compute capability; from (8, 0) on a card has units for bf16.
        memory_bytes: what PyTorch can allocate on one.
        processors: streaming multiprocessors.
        gpus: how many.
    """

    card: str
    capability: tuple[int, int]
    memory_bytes: int
    processors: int
    gpus: int = 1

    @property
    def name(self) -> str:
        """The name of each of its devices."""
        return f"simulated {self.card}"

    @property
    def words(self) -> str:
        """What the variable says, and the id of a test: `T4`, `4 T4`."""
        return self.card if self.gpus == 1 else f"{self.gpus} {self.card}"

    def times(self, gpus: int) -> Machine:
        """The machine with so many of these GPUs."""
        return replace(self, gpus=gpus)

    def environment(self, library: Path) -> dict[str, str]:
        """This process's environment, for a child that shall be such a machine, without what these tests set in it."""
        others = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COURSE_"))}
        path = [str(HERE / "site"), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        python_path = os.pathsep.join(filter(None, path))
        return others | {GPU: self.words, LIBRARY: str(library), "PYTHONPATH": python_path}


T4 = Machine("T4", (7, 5), 15 * GIB, 40)
H100 = Machine("H100", (9, 0), 79 * GIB, 132)


def here() -> Machine:
    """The machine that the variable names."""
    words = os.environ[GPU].split()
    card = {machine.card: machine for machine in (T4, H100)}[words[-1]]
    return card.times(int(words[0])) if len(words) > 1 else card

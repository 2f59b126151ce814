"""The limits of one submission: seconds, bytes, processes."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1024**2


@dataclass(frozen=True)
class Limits:
    """The limits of one submission; all of them positive.

    Attributes:
        wall_s: seconds for everything, from the start of the first kernel to the last check.
        cell_s: seconds for one cell; then the cell is interrupted, and its kernel ended if it does not stop.
        memory_bytes: memory of all processes together, and of each file system in memory.
        processes: processes alive at one time, ranks included. A rank runs some ten threads, which the system counts.
        file_bytes: size of one file that a submission writes.
        submission_bytes: size of the notebook that is handed in.
        message_chars: characters of a check's message; the rest is cut.
    """

    wall_s: float = 600.0
    cell_s: float = 60.0
    memory_bytes: int = 4096 * MIB
    processes: int = 64
    file_bytes: int = 256 * MIB
    submission_bytes: int = 20 * MIB
    message_chars: int = 2000

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise ValueError(f"{field.name} is {value:g}; a limit must be above 0")

    @property
    def threads(self) -> int:
        """Number of threads, which the operating system counts against its limit on processes."""
        return 16 * self.processes

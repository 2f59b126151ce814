"""What went wrong in a call, rank by rank: `RankFailure` and its `reports`.

A hang on 4 processes is only a riddle while nobody says who waits for whom. So a failure starts with one sentence that
says it, and then tells for every rank what became of it, with the reader's own lines.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from textwrap import indent
from types import MappingProxyType
from typing import Literal

State = Literal["returned", "raised", "died", "waiting", "running"]


@dataclass(frozen=True)
class WaitsIn:
    """The communication that a rank is blocked in.

    Attributes:
        collective: the name of the torch.distributed function ("all_reduce", "recv").
        site: the line that called it ("cell [5] line 7").
        sequence: how many calls of this group the rank made before, in this run (0 for the first); None if unknown.
        peers: what it waits for, in words ("from rank 0"), or "".
    """

    collective: str
    site: str
    sequence: int | None = None
    peers: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.collective, self.peers, f"({self.site})") if part)


@dataclass(frozen=True)
class RankReport:
    """What became of one rank.

    Attributes:
        rank: its number.
        state: "returned", "raised" (an exception), "died" (its process ended), "waiting" (blocked in a communication)
            or "running" (busy in code of its own when the call was ended).
            A rank whose connection broke because another one died counts as waiting.
        traceback: the exception's traceback if it raised, else where it was, with the reader's source lines.
        waits_in: the communication that a waiting rank is blocked in.
        exit_code: how the process of a rank that died ended; minus the signal's number if a signal killed it.
        error: the exception in one line ("ValueError: …") if it raised.
        last_words: what C code printed before the process died.
    """

    rank: int
    state: State
    traceback: str = ""
    waits_in: WaitsIn | None = None
    exit_code: int | None = None
    error: str = ""
    last_words: str = ""

    @property
    def fate(self) -> str:
        """What became of the rank: "waits in all_reduce (cell [5] line 7)"."""
        return {
            "returned": "returned",
            "raised": f"raised {self.error}",
            "died": f"died ({exit_words(self.exit_code)})",
            "waiting": f"waits in {self.waits_in}",
            "running": "was still running",
        }[self.state]

    def __str__(self) -> str:
        return f"rank {self.rank} {self._account()}"

    def _account(self) -> str:
        """The fate, and below it what shows how it came to that."""
        body = "\n".join(part.rstrip() for part in (self.traceback, self.last_words) if part)
        return self.fate + (":\n" + indent(body, "    ") if body else "")


def exit_words(code: int | None) -> str:
    """An exit code in words: "killed by SIGKILL", "exit code 3"."""
    if code is None:
        return "its connection closed"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


class RankFailure(RuntimeError):
    """At least one rank of a call did not return as it should, so the call has no result.

    Attributes:
        verdict: what happened, in one sentence.
        reports: one `RankReport` per rank, in rank order.
    """

    def __init__(self, verdict: str, reports: list[RankReport]) -> None:
        super().__init__(verdict, reports)
        self.verdict = verdict
        self.reports = reports

    def __str__(self) -> str:
        return "\n\n".join([self.verdict, *_told_once(self.reports, RankReport._account)])

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the report. The notebook's own stack would only show how ranks are supervised."""
        return f"{type(self).__name__}: {self}".splitlines()


def one_sentence(
    reports: list[RankReport], first: Collection[int] = (), fates: Mapping[int, str] = MappingProxyType({})
) -> str:
    """The fates of all ranks as one sentence, the ranks in `first` first, equal fates said once.

    `fates` holds, for some ranks, better words than their report's own.

    Example: "rank 1 raised ValueError: no; rank 0 waits in all_reduce (cell [5] line 7); ranks 2 and 3 returned".
    """
    ordered = sorted(reports, key=lambda report: (report.rank not in first, report.rank))
    return "; ".join(_told_once(ordered, lambda report: fates.get(report.rank, report.fate)))


def _told_once(reports: list[RankReport], tell: Callable[[RankReport], str]) -> list[str]:
    """`tell` each report's story; ranks with the same story share one."""
    stories: dict[str, list[int]] = {}
    for report in reports:
        stories.setdefault(tell(report), []).append(report.rank)
    return [f"{name_ranks(ranks)} {_agree(story, len(ranks))}" for story, ranks in stories.items()]


def name_ranks(ranks: list[int]) -> str:
    """`rank 1`, `ranks 1 and 3`, `ranks 0, 1, 2 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _agree(fate: str, count: int) -> str:
    """Put the verb of a clause into the plural for several ranks."""
    if count > 1:
        for one, many in (("waits ", "wait "), ("was still", "were still")):
            if fate.startswith(one):
                return many + fate[len(one) :]
    return fate

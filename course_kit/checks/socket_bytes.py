"""Bytes that left the ranks' sockets: a witness outside of Python for the bytes that were counted.

Counting can be switched off, and messages of a thread or of the backend's own objects are not counted at all. The
kernel counts all bytes that leave the sockets, from any sender. So a limit on counted bytes proves something only
beside two others: so much must have been counted at least, and the sockets must have carried that, no less and hardly
more.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_kit.accounts import TrafficAccount
from course_kit.checks.failed import fail
from course_kit.units import Bytes

SHARE = 0.02
"""The part by which carried bytes may differ from counted ones, headers aside."""

HEADERS = 300
"""Bytes for each message between two ranks: gloo puts 48 in front, and announces and answers larger ones. A collective
sends up to four to and from each other rank."""

PROCESS = 2000
"""Bytes that a rank may send for reasons of its own, such as meeting the others."""


def carried(accounts: Sequence[TrafficAccount], least: float = 0, *, look: str = "") -> None:
    """Check that all ranks' calls sent at least `least` bytes together, and that the sockets carried just these.

    Where the system does not count (it does on Linux), the calls alone decide.

    Raises:
        CheckFailed: fewer bytes were counted, or fewer or more carried.
    """
    counted = sum(int(account.total_bytes) for account in accounts)
    if counted < least:
        where = look or "what travels uncounted, or made smaller, or never"
        what = "bytes that the ranks sent together, by their calls"
        fail(what, expected=f"at least {Bytes(int(least))}", came=f"{Bytes(counted)}", look=where)
    seen = [account.observed_bytes for account in accounts]
    if None not in seen:
        _compare(sum(int(each or 0) for each in seen), counted, accounts, look)
    print(f"✓ … {Bytes(counted)} sent by the calls of all ranks, and carried by the sockets")


def _compare(seen: int, counted: int, accounts: Sequence[TrafficAccount], look: str) -> None:
    most = sum(_most(account, len(accounts)) for account in accounts)
    if seen > most:
        where = look or "who sends besides your calls: a thread, an object of the backend, a socket of your own?"
        what = "bytes that the sockets of all ranks carried; the system counts them, whoever sends"
        expected = f"at most {Bytes(int(most))}: {Bytes(counted)} by calls, and headers"
        fail(what, expected=expected, came=f"{Bytes(seen)}", look=where)
    if seen < (1 - SHARE) * counted:
        where = "a message that nobody receives, or a handle that was dropped before it was waited for"
        what = "bytes that the sockets of all ranks carried; the system counts them"
        fail(what, expected=f"the {Bytes(counted)} that were sent by calls", came=f"{Bytes(seen)}", look=where)


def _most(account: TrafficAccount, n_ranks: int) -> float:
    """Bytes that these calls may have put on the wire: payload, and headers by message."""
    twice = account.modelled_bytes.get("reduce_scatter", 0)  # gloo's reduce-scatter is an all-reduce in disguise
    messages = sum(n * (1 if name == "send" else 4 * (n_ranks - 1)) for name, n in account.messages.items())
    return (1 + SHARE) * (int(account.total_bytes) + int(twice)) + HEADERS * messages + PROCESS

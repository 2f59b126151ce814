"""What this rank sends: bytes and messages by operation, and what the operating system saw leaving.

    def on_each_rank():
        with measure.traffic() as sent:
            dist.all_reduce(torch.ones(1000))
        return sent

    ranks.run(on_each_rank, world_size=4)   # four TrafficAccounts

Two witnesses, which know nothing of each other: the kernel counts bytes (`observed_bytes`), a dispatch mode counts
calls and attributes bytes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from course_kit.accounts import TrafficAccount
from course_kit.communications import Communication
from course_kit.measure.attributed import CommunicationCall, payload_bytes
from course_kit.measure.dispatch import CommunicationMode, group_of
from course_kit.measure.sockets import bytes_by_connection
from course_kit.units import Bytes


@contextmanager
def traffic() -> Iterator[TrafficAccount]:
    """Count what this rank sends inside the `with` block. Use it inside a function that runs on ranks.

    `observed_bytes` is the difference of the kernel's own TCP counters: payload and the backend's headers, without the
    rendezvous store. On the wire a small tensor costs visibly more than its bytes, a large one hardly. No formula has a
    part in it; where it exists, claims about bytes rest on it (`sent_bytes`).

    `attributed_bytes` and `messages` tell operations apart. For send, isend and batch_isend_irecv (all named "send")
    they are exact, and `bytes_to` and `messages_to` tell them apart by destination, a rank of the whole world. Library
    collectives do not say whom they send what. For them `messages` counts calls, and the bytes are this rank's share by
    the formula of the algorithm that moves least: a library may use another one, and some do.

    Not every rank needs to call this, and it sends nothing. Work that is still under way at the end of the block (an
    `async_op=True` that nobody waited for) is in `attributed_bytes` but may be missing from `observed_bytes`: wait for
    it, or end the block with a `dist.barrier()`. Communication from other threads of this process than the caller's
    (and autograd's) is only in `observed_bytes`.

    Yields:
        The account. It fills as the block runs; `observed_bytes` is set at its end and stays None where the system
        does not count (macOS, Windows) or does not see it (NCCL).
    """
    account = TrafficAccount(None, {}, {}, {}, {}, {})
    before = bytes_by_connection()
    try:
        with _Counter(account):
            yield account
    finally:
        after = bytes_by_connection()
        if before is not None and after is not None:
            observed = {each: Bytes(sent - before.get(each, 0)) for each, sent in after.items()}
            account.observed_by_connection.update(observed)  # type: ignore[attr-defined]
            total = sum(observed.values(), Bytes(0))
            object.__setattr__(account, "observed_bytes", total)  # an account is frozen for everyone else


class _Counter(CommunicationMode):
    """Adds every communication that passes the dispatcher to an account."""

    def __init__(self, account: TrafficAccount) -> None:
        super().__init__()
        self._bytes: dict[str, Bytes] = account.attributed_bytes  # type: ignore[assignment]
        self._messages: dict[str, int] = account.messages  # type: ignore[assignment]
        self._bytes_to: dict[int, Bytes] = account.bytes_to  # type: ignore[assignment]
        self._messages_to: dict[int, int] = account.messages_to  # type: ignore[assignment]

    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Count it if it sends, before it runs (it may change its tensors)."""
        if found.kind in ("send", "collective"):
            group = group_of(given)
            n_bytes = payload_bytes(CommunicationCall(found, given, group.size(), group.rank()))
            _add(self._bytes, self._messages, found.name, n_bytes)
            if found.kind == "send":
                _add(self._bytes_to, self._messages_to, dist.get_global_rank(group, given["dst"]), n_bytes)
        return call()


def _add(totals: dict[Any, Bytes], counts: dict[Any, int], key: str | int, n_bytes: Bytes) -> None:
    totals[key] = totals[key] + n_bytes if key in totals else n_bytes
    counts[key] = counts.get(key, 0) + 1

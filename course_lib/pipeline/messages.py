"""A pipeline rank's messages: nothing waits for a send, and messages between two ranks arrive in the sender's order.

A send that waits until it is received can close a circle: in 1F1B rank 2 sends an activation to rank 3 while rank 3
sends a gradient to rank 2, and neither comes to its receive. Here a rank only ever waits for a message that it needs,
so ranks can wait in a circle only where the schedule itself has one, and `problems` finds that beforehand. Which
messages come from a peer, and in which order, is read off the peer's part of the schedule.

A message travels while its receiver computes, if the receive is posted before it is sent. So a receive is posted as
soon as the peer may send: when all that the peer takes from this rank before that is on its way. In 1F1B that is one
activation more than are in flight, in GPipe all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from course_lib.pipeline.schedule import Message, Schedule
from course_lib.pipeline.schedule.validate import steps

Group = dist.ProcessGroup | None
"""The ranks of the pipeline; None for all."""


@dataclass
class PeerQueue:
    """What goes to and fro between this rank and another one in one step of training.

    Attributes:
        rank: the other's number in the group.
        expected: its messages for this rank that no receive is posted for, in its order; each with its place in the
            peer's own list of sends and receives.
        unsent: what it will take from this rank, in its order: the message, and its place in that list.
        posted: the receives that are posted: message, place, buffer, handle.
        outgoing: sends that may still be under way: the place at which they are taken, the tensor, which must live
            until then, and the handle.
    """

    rank: int
    expected: deque[tuple[int, Message]] = field(default_factory=deque)
    unsent: dict[Message, int] = field(default_factory=dict)
    posted: deque[tuple[Message, int, Tensor, dist.Work]] = field(default_factory=deque)
    outgoing: deque[tuple[int, Tensor, dist.Work]] = field(default_factory=deque)

    def may_send_next(self) -> bool:
        """Whether the next message that it is expected to send may come already."""
        stops_at = next(iter(self.unsent.values()), None)
        return bool(self.expected) and (stops_at is None or self.expected[0][0] < stops_at)


class PipelineMessages:
    """This rank's messages in one step.

    Args:
        schedule: whose messages they are.
        rank: this rank's number in the group.
        empty: makes the buffer for a message.
        group: the ranks of the pipeline.
        blocking_sends: wait in each send until it is received, and receive nothing ahead: to see it deadlock.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        empty: Callable[[Message], Tensor],
        group: Group = None,
        blocking_sends: bool = False,
    ) -> None:
        self._owner, self._rank, self._empty, self._group = schedule.owner, rank, empty, group
        self._blocking = blocking_sends
        self._arrived: dict[Message, Tensor] = {}
        self._peers: dict[int, PeerQueue] = {}
        self._sender: dict[Message, PeerQueue] = {}
        for other in range(schedule.ranks):
            for place, (verb, message, end, _) in enumerate(steps(schedule, other) if other != rank else ()):
                if end != rank:
                    continue
                peer = self._peers.setdefault(other, PeerQueue(other))
                if verb == "send":
                    peer.expected.append((place, message))
                    self._sender[message] = peer
                else:
                    peer.unsent[message] = place
        for peer in self._peers.values():
            self._post_ahead(peer)

    def receive(self, message: Message | None) -> Tensor | None:
        """Wait until the message is there. What the same peer sends before it is kept for later."""
        if message is None:
            return None
        while message not in self._arrived:
            self._accept_next(self._sender[message])
        return self._arrived.pop(message)

    def send(self, message: Message | None, tensor: Tensor | None) -> None:
        """Send, and do not wait. A message to another stage of this rank stays here."""
        if message is None or tensor is None:
            return
        to = self._owner[message.stage]
        if to == self._rank:
            self._arrived[message] = tensor
        elif self._blocking:
            dist.send(tensor, group=self._group, group_dst=to)
        else:
            peer = self._peers[to]
            place, work = peer.unsent.pop(message), dist.isend(tensor, group=self._group, group_dst=to)
            assert work is not None
            peer.outgoing.append((place, tensor, work))
            self._post_ahead(peer)

    def finish(self) -> None:
        """Wait until all that was sent has been received."""
        for peer in self._peers.values():
            for _, _, work in peer.outgoing:
                work.wait()
            peer.outgoing.clear()

    def _post_ahead(self, peer: PeerQueue) -> None:
        """Post the receives of all that the peer may send now, so that it can travel while this rank computes."""
        while peer.may_send_next() and not self._blocking:
            self._post(peer)

    def _post(self, peer: PeerQueue) -> None:
        place, message = peer.expected.popleft()
        buffer = self._empty(message)
        work = dist.irecv(buffer, group=self._group, group_src=peer.rank)
        assert work is not None
        peer.posted.append((message, place, buffer, work))

    def _accept_next(self, peer: PeerQueue) -> None:
        if self._blocking:
            _, message = peer.expected.popleft()
            self._arrived[message] = buffer = self._empty(message)
            dist.recv(buffer, group=self._group, group_src=peer.rank)
            return
        if not peer.posted:  # an invalid schedule: wait for what cannot come
            self._post(peer)
        message, place, buffer, work = peer.posted.popleft()
        work.wait()
        self._arrived[message] = buffer
        # The peer had come to `place` when it sent this, so what it received before that place has left this rank.
        while peer.outgoing and peer.outgoing[0][0] < place:
            peer.outgoing.popleft()[2].wait()

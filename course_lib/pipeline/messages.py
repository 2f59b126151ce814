"""A pipeline rank's messages: no send is waited for, and messages between two ranks arrive in the sender's order.

If sends waited for their receives, 1F1B would deadlock: rank 2 sends rank 3 an activation, rank 3 sends rank 2 a
gradient, and neither receives. Here a rank waits only for messages that it needs; `problems` finds circles of those.

A message travels while its receiver computes, if the receive is posted first: as soon as the peer may send. The peer's
own list of sends and receives tells when. In 1F1B on two ranks (a: activation, g: gradient), rank 1 reads

    place in rank 0's list   0        1        2           3        4           5
    rank 0's step            send a0  send a1  receive g0  send a2  receive g1  receive g2

    at the start  posted     a0       a1                                                     no receive before them
                  expected                                 a2                                rank 0 wants g0 first
                  unsent                       g0                   g1          g2
    g0 is sent    posted                                   a2                                3 < 4, the next in unsent
                  outgoing                     g0
    a2 is here    outgoing                     -                                             3 > 2: rank 0 has g0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.operators import Group
from course_lib.pipeline.schedule import Message, Schedule
from course_lib.pipeline.schedule.validate import point_to_point


def one_queue_for_a_pair(group: Group) -> bool:
    """Whether all messages between two ranks of a group are carried out in one order, as in NCCL.

    If gradients and activations shared that order, 1F1B would deadlock. In gloo each message is independent.
    """
    return "nccl" in str(dist.get_backend_config(group))


def meet(schedule: Schedule, rank: int, token: Tensor, groups: tuple[Group, Group], tied: bool) -> None:
    """Exchange a token with every rank that this one will exchange messages with. All ranks must call.

    At the first message of two ranks in a group NCCL makes their communicator, and both programs wait for that. In the
    order of a step they may wait in a circle: interleaved over 4 ranks, 0 waits for 3, 3 for 2, 2 for 1 and 1 for 0.
    Here all ranks have one order of pairs, and the first pair that is left can always meet. (With a `device_id` in
    `init_process_group` a rank's messages in a group would share one stream, and 1F1B would wait in a circle.)

    The token lies on the messages' device. The ranks of the first and the last stage know whether a weight is `tied`.
    """
    owner = schedule.owner
    neighbours = [*pairwise(owner), *([(owner[0], owner[-1])] if tied else [])]
    for low, high in sorted({(min(pair), max(pair)) for pair in neighbours if pair[0] != pair[1]}):
        if rank == low:
            dist.send(token, group=groups[0], group_dst=high)
            dist.recv(token, group=groups[1], group_src=high)
        elif rank == high:
            dist.recv(token, group=groups[0], group_src=low)
            dist.send(token, group=groups[1], group_dst=low)


@dataclass
class PeerQueue:
    """Messages between this rank and a peer in one step of training, each with its place in the peer's list.

    Attributes:
        rank: the peer's number in the group.
        expected: the peer's messages for which no receive is posted: place, message.
        unsent: messages to the peer that are still to be sent, in the peer's order: message → place.
        posted: receives that are posted: message, place, buffer, handle.
        outgoing: sends that may be under way: place, tensor, handle.
    """

    rank: int
    expected: deque[tuple[int, Message]] = field(default_factory=deque)
    unsent: dict[Message, int] = field(default_factory=dict)
    posted: deque[tuple[Message, int, Tensor, dist.Work]] = field(default_factory=deque)
    outgoing: deque[tuple[int, Tensor, dist.Work]] = field(default_factory=deque)  # a tensor must outlive its send

    def may_send_next(self) -> bool:
        """Whether the peer can send its next message without another one from this rank."""
        stops_at = next(iter(self.unsent.values()), None)  # where the peer's list waits for this rank
        return bool(self.expected) and (stops_at is None or self.expected[0][0] < stops_at)


class PipelineMessages:
    """This rank's messages in one step.

    Args:
        schedule: the schedule of all ranks.
        rank: this rank's number in the group.
        empty: makes the buffer for a message.
        groups: the ranks of the pipeline, for messages to higher and to lower ranks.
        blocking_sends: wait in each send for its receive, and post no receive ahead: to see a deadlock.
    """

    def __init__(
        self, schedule: Schedule, rank: int, empty: Callable[[Message], Tensor],
        groups: tuple[Group, Group] = (None, None), blocking_sends: bool = False,
    ) -> None:  # fmt: skip
        self._owner, self._rank, self._empty, self._groups = schedule.owner, rank, empty, groups
        self._blocking = blocking_sends
        self._arrived: dict[Message, Tensor] = {}
        self._peers: dict[int, PeerQueue] = {}
        self._sender: dict[Message, PeerQueue] = {}
        for other in range(schedule.ranks):
            for place, (verb, message, end, _) in enumerate(point_to_point(schedule, other) if other != rank else ()):
                if end != rank:  # a message between two other ranks
                    continue
                peer = self._peers.setdefault(other, PeerQueue(other))
                if verb == "send":
                    peer.expected.append((place, message))  # the peer sends: this rank will receive
                    self._sender[message] = peer
                else:
                    peer.unsent[message] = place  # the peer waits there for this rank's send
        for peer in self._peers.values():
            self._post_ahead(peer)

    def receive(self, message: Message | None) -> Tensor | None:
        """Wait for a message. Messages that the same peer sends before it are kept for later."""
        if message is None:
            return None
        while message not in self._arrived:
            self._accept_next(self._sender[message])
        return self._arrived.pop(message)  # read once

    def send(self, message: Message | None, tensor: Tensor | None) -> None:
        """Start a send, and do not wait for it. A message to another stage of this rank stays here."""
        if message is None or tensor is None:
            return
        to = self._owner[message.stage]
        if to == self._rank:
            self._arrived[message] = tensor
        elif self._blocking:
            dist.send(tensor, group=self._groups[to < self._rank], group_dst=to)
        else:
            peer = self._peers[to]
            work = dist.isend(tensor, group=self._groups[to < self._rank], group_dst=to)
            assert work is not None
            place = peer.unsent.pop(message)
            peer.outgoing.append((place, tensor, work))
            self._post_ahead(peer)  # the peer can go on now, up to the next message that it needs

    def finish(self) -> None:
        """Wait until all sends have been received."""
        for peer in self._peers.values():
            for _, _, work in peer.outgoing:
                work.wait()
            peer.outgoing.clear()

    def _post_ahead(self, peer: PeerQueue) -> None:
        """Post the receives of all messages that the peer may send now."""
        while peer.may_send_next() and not self._blocking:
            self._post(peer)

    def _post(self, peer: PeerQueue) -> None:
        place, message = peer.expected.popleft()
        buffer = self._empty(message)
        work = dist.irecv(buffer, group=self._groups[self._rank < peer.rank], group_src=peer.rank)
        assert work is not None
        peer.posted.append((message, place, buffer, work))

    def _accept_next(self, peer: PeerQueue) -> None:
        if not peer.posted:  # none is posted ahead; or an invalid schedule: wait for a message that cannot come
            self._post(peer)
        message, place, buffer, work = peer.posted.popleft()
        work.wait()
        self._arrived[message] = buffer
        # The peer's receives before `place` are done, so these waits end at once.
        while peer.outgoing and peer.outgoing[0][0] < place:
            peer.outgoing.popleft()[2].wait()

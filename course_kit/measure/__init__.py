"""Meters for the claims of `predict`: bytes held, bytes sent, floating-point operations, seconds.

The bytes of a rank's `dist.all_reduce(x)` are counted in this order:

    traffic.py   `with measure.traffic()`: reads the sockets' counters, and enters the mode
     ├─ traffic.py           the operation passes PyTorch's dispatcher, from any caller: c10d::allreduce_(…)
     │   └─ communications.py    its name, and the argument that holds x: ("all_reduce", "tensors")
     ├─ traffic.py           bytes of this call: x's size for a send, else a formula's (`ModelledBytes`)
     ├─ traffic.py           at the end of the block, the counters again: bytes that the kernel saw leaving
     └─ accounts.py          both, side by side: TrafficAccount(observed_bytes, modelled_bytes, messages, …)

Bytes held go another way: storages.py (blocks), tracker.py (lives), owners.py (owners), memory.py (the account).
"""

from course_kit.measure.flops import FlopRecord, MatrixProducts, flops
from course_kit.measure.memory import MemoryRecord, Timeline, memory
from course_kit.measure.time import seconds
from course_kit.measure.timeline import Event, RankTimeline, timeline
from course_kit.measure.traffic import traffic

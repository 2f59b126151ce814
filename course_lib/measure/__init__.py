"""What the formulas of `predict` claim, observed: bytes held, bytes sent, floating-point operations, seconds.

Lesson 00 opens this package.
"""

from course_lib.measure.flops import FlopRecord, flops
from course_lib.measure.memory import MemoryRecord, Timeline, memory
from course_lib.measure.products import MatrixProducts
from course_lib.measure.time import seconds
from course_lib.measure.timeline import Event, RankTimeline, timeline
from course_lib.measure.traffic import traffic

__all__ = [
    "Event",
    "FlopRecord",
    "MatrixProducts",
    "MemoryRecord",
    "RankTimeline",
    "Timeline",
    "flops",
    "memory",
    "seconds",
    "timeline",
    "traffic",
]

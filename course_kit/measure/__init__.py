"""What the formulas of `predict` claim, observed: bytes held, bytes sent, floating-point operations, seconds."""

from course_kit.measure.flops import FlopRecord, flops
from course_kit.measure.memory import MemoryRecord, Timeline, memory
from course_kit.measure.products import MatrixProducts
from course_kit.measure.time import seconds
from course_kit.measure.timeline import Event, RankTimeline, timeline
from course_kit.measure.traffic import traffic

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

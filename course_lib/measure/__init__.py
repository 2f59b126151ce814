"""What the formulas of `predict` claim, observed: bytes held, bytes sent, floating-point operations, seconds.

Lesson 00 opens this package.
"""

from course_lib.measure.memory import MemoryRecord, memory

__all__ = ["MemoryRecord", "memory"]

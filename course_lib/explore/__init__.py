"""Explorers: small instruments to touch. Each is one class here; its arithmetic is a pure function that is tested alone."""

from course_lib.explore.bits import BitExplorer, BitRow, bit_rows

__all__ = ["BitExplorer", "BitRow", "bit_rows"]

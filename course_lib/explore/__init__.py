"""Explorers: small instruments to touch. One class each; the arithmetic is a pure function that is tested alone."""

from course_lib.explore.bits import BitExplorer, BitRow, bit_rows

__all__ = ["BitExplorer", "BitRow", "bit_rows"]

"""Explorers: small instruments to touch. One class each; the arithmetic is a pure function that is tested alone."""

from course_lib.explore.bits import BitExplorer, BitRow, bit_rows
from course_lib.explore.film import FilmExplorer
from course_lib.explore.ring import RingExplorer, ring_frames

__all__ = ["BitExplorer", "BitRow", "FilmExplorer", "RingExplorer", "bit_rows", "ring_frames"]

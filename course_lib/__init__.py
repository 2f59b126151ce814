"""Bigger Than One GPU: the library behind the lessons."""

__version__ = "0.1.0"

"""Bigger Than One GPU: the tools around the course, to open, run, build and grade it."""

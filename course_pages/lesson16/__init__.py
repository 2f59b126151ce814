"""Lesson 16's page: rooflines, classes of operations, tiles, slow steps, the explorer, checks of turns."""

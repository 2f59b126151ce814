"""Lesson 10's page: pictures, the explorer, ledgers of ranks, checks of turns."""

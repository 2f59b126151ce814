"""Lesson 15's page: meters of memory, other libraries' restarts, a job on a cluster, the explorer, checks of turns."""

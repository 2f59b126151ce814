"""Lesson 11's page: pictures, the explorer, meters of a process, checks of turns."""

"""Lesson 09's page: pictures, the explorer, runs, checks of turns."""

"""Lesson 07's page: pictures, the explorer, runs, checks of turns."""

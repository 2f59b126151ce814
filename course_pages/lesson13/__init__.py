"""Lesson 13's page: pictures, the explorer, trials, checks of turns."""

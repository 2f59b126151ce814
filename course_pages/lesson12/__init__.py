"""Lesson 12's page: pictures, the explorer, ten shapes, a recorded step, checks of turns."""

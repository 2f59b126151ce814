"""Lesson 05's page: pictures, the explorer, checks of turns."""

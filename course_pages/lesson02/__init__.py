"""Lesson 02's page: pictures, the explorer, checks of turns."""

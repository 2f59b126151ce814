"""Lesson 01's page: pictures, the explorer, checks of turns."""

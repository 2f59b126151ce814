"""Lesson 08's page: pictures, the explorer, runs, checks of turns."""

"""Checks of lesson 00's turns."""

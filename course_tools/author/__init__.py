"""From the sources in `lessons/src` to the executed notebooks in `lessons`, the same to the byte each time.

The command is `course build`; CONTRIBUTING.md explains the way.
"""

"""From the sources in `lessons/src` to the executed notebooks in `lessons`, the same to the byte each time.

`course build` is the command; CONTRIBUTING.md explains the way.
"""

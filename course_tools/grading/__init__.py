"""Grade submissions of a lab, safely: `course grade` and `course feedback`. Students need none of it.

INSTRUCTORS.md explains it.
"""

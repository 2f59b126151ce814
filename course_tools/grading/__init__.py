"""Grade submissions of a lab, safely: `course grade` and `course feedback`. Students need none of it.

No lesson opens this package; INSTRUCTORS.md explains it.
"""

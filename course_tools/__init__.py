"""Bigger Than One GPU: the tools around the course, to open, run, build and grade it."""

import sys

# nbformat imports jsonschema, which builds a grammar of web addresses if it finds this module: three seconds in every
# process, to check a format that no notebook has. None means: not to be found.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

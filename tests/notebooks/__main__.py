"""`python -m tests.notebooks`: execute every lesson and solved lab again; compare all outputs with the stored ones."""

import sys

from tests.notebooks.gate import run

sys.exit(run(sys.argv[1:]))

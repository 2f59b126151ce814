"""Why a call failed: who waits for whom, in which line. A reader of the lessons needs none of it."""

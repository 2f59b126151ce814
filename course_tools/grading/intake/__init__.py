"""Submissions: found in a folder or zip, and rebuilt into the notebook that is graded."""

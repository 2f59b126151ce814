"""Files about a graded batch: results, feedback, gradebook files."""

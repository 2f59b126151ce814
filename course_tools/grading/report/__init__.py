"""What is written about a graded batch: results, feedback, gradebook files."""

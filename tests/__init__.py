"""Real processes, real notebooks, a real browser."""

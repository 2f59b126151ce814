"""What lesson 00 shows."""

"""What lesson 16 shows: rooflines, classes of operations, tiles, slow steps, and the checks of its turns."""

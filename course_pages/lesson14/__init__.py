"""What lesson 14 shows: its grid of runs, its pictures, its explorer, the checks of its turns."""

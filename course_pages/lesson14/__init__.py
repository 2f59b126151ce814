"""Pages of lesson 14 and its lab: the grid of runs, pictures, the explorer, checks of turns."""

"""Pages of lesson 06 and its lab: pictures, the explorer, checks of turns."""

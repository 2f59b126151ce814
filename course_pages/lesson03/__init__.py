"""Pages of lesson 03 and its lab: pictures, the explorer, checks of turns."""

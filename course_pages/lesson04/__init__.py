"""Pages of lesson 04 and its lab: pictures, the explorer, checks of turns."""

"""The kit: what lessons use and nobody must read. Real ranks from a cell, meters, the checks of labs, and cells."""

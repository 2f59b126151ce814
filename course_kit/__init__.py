"""The kit, which lessons use: a reader may skip it. Real ranks from a cell, meters, the checks of labs, and cells."""

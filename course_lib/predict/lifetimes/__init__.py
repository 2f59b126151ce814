"""The simulator of one device's step: which block of memory exists from when to when, for `predict.peak`."""

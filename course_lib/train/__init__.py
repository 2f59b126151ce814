"""Training on one device: `step` is the oracle of every other path; each module beside it changes one thing."""

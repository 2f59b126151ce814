"""Data for a run: tokens on disk, their order as a function, mixtures of sources, documents packed into rows."""

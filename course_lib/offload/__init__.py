"""Offload: states and weights that wait in main memory or in files until they are needed."""

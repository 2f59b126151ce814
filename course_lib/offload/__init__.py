"""Offload: states, weights and saved tensors that wait in main memory or in files until they are needed."""

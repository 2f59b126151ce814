"""The sandbox in which strangers' code runs: a kernel that sees little, may do little, and can be ended."""

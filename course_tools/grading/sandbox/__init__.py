"""Where strangers' code runs: a kernel that sees little, may little, and can be ended."""

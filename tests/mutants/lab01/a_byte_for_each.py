# %%
"""Nothing is packed: every pattern keeps a byte of its own, and comes back unharmed."""

LOSES = {"q3-values", "q3-held", "q3-hidden"}


# %% answer="q3"
def pack(patterns, bits):
    return patterns.flatten()


# %% answer="q3-back"
def unpack(packed, bits):
    return packed

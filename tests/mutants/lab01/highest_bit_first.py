# %%
"""Patterns follow each other with their highest bit first, in both directions."""

LOSES = {"q3-values", "q3-hidden"}


# %% answer="q3"
def pack(patterns, bits):
    stream = (patterns.reshape(-1, 1) >> torch.arange(bits, dtype=torch.uint8).flip(0)) & 1
    weights = 2 ** torch.arange(8, dtype=torch.uint8).flip(0)
    return (stream.view(-1, 8) * weights).sum(dim=1, dtype=torch.uint8)


# %% answer="q3-back"
def unpack(packed, bits):
    stream = (packed.view(-1, 1) >> torch.arange(8, dtype=torch.uint8).flip(0)) & 1
    weights = 2 ** torch.arange(bits, dtype=torch.uint8).flip(0)
    return (stream.view(-1, bits) * weights).sum(dim=1, dtype=torch.uint8)

# %%
"""The right bytes, at the beginning of a buffer that holds a byte for every element."""

LOSES = {"q3-held", "q3-hidden"}


# %% answer="q3"
def pack(patterns, bits):
    stream = (patterns.reshape(-1, 1) >> torch.arange(bits, dtype=torch.uint8)) & 1
    packed = (stream.view(-1, 8) * 2 ** torch.arange(8, dtype=torch.uint8)).sum(dim=1, dtype=torch.uint8)
    buffer = torch.zeros(patterns.numel() + 1, dtype=torch.uint8)
    buffer[: packed.numel()] = packed
    return buffer[: packed.numel()]

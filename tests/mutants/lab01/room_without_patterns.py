# %%
"""As many bytes as it should hold, and nothing in them."""

LOSES = {"q3-values", "q3-held", "q3-hidden"}


# %% answer="q3"
def pack(patterns, bits):
    return torch.zeros(patterns.numel() * bits // 8, dtype=torch.uint8)

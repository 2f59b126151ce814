# %%
"""Each sign takes a whole byte."""

LOSES = {"q4-values", "q4-hidden", "q5-traffic", "q5-hidden"}


# %% answer="q4"
def encode(x):
    scale = x.abs().mean() if len(x) else x.new_zeros(())
    bits = torch.zeros(-(-len(x) // 8) * 8, dtype=torch.uint8)
    bits[: len(x)] = x >= 0
    return torch.cat([scale.view(1).view(torch.uint8), bits[: len(x)]])


# %% answer="q4-decode"
def decode(message, n):
    scale = message[:4].clone().view(torch.float32)
    bits = message[4:]
    return torch.where(bits.flatten()[:n] == 1, scale, -scale)

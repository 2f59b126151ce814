# %%
"""Zero becomes minus."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
def encode(x):
    n = len(x)
    scale = x.abs().mean() if n > 0 else torch.tensor(0.0)
    bits = torch.zeros(-(-n // 8) * 8, dtype=torch.int64)
    bits[:n] = (x > 0).long()
    packed = (bits.view(-1, 8) * 2 ** torch.arange(8)).sum(1).to(torch.uint8)
    return torch.cat([scale.view(1).view(torch.uint8), packed])


# %% answer="q4-decode"
def decode(message, n):
    scale = message[:4].clone().view(torch.float32)
    bits = (message[4:].view(-1, 1) >> torch.arange(8)) & 1
    return (bits.flatten()[:n].float() * 2 - 1) * scale

# %%
"""The scale is the largest magnitude, not the one that loses least."""

LOSES = {"q4-values", "q4-hidden", "q5-values", "q5-feedback", "q5-traffic", "q5-training", "q5-hidden"}


# %% answer="q4"
def encode(x):
    scale = x.abs().max() if len(x) else x.new_zeros(())
    bits = torch.zeros(-(-len(x) // 8) * 8, dtype=torch.uint8)
    bits[: len(x)] = x >= 0
    signs = (bits.view(-1, 8) * 2 ** torch.arange(8)).sum(dim=1).to(torch.uint8)
    return torch.cat([scale.view(1).view(torch.uint8), signs])

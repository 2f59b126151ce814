# %%
"""The power of two nearest to the largest number, where the rule wants the one below it."""

LOSES = {"q1-values", "q1-edges", "q1-hidden"}


# %% answer="q1"
def block_scales(x, element):
    if x.numel() % 32:
        raise ValueError("pad x to a multiple of 32")
    largest = x.view(-1, 32).abs().amax(dim=1)
    byte = torch.log2(largest).round() - element.max_exponent + 127
    return torch.where(largest.isfinite(), byte.clamp(0, 254), 255).to(torch.uint8)

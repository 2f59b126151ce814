# %%
"""frexp puts the largest number below 1, not below 2: every scale is twice too large."""

LOSES = {"q1-values", "q1-edges", "q1-hidden"}


# %% answer="q1"
def block_scales(x, element):
    if x.numel() % 32:
        raise ValueError("pad x to a multiple of 32")
    largest = x.view(-1, 32).abs().amax(dim=1)
    _, exponent = torch.frexp(largest)
    byte = torch.where(largest == 0, 0, exponent - element.max_exponent + 127)
    return torch.where(largest.isfinite(), byte.clamp(0, 254), 255).to(torch.uint8)

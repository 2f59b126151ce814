# %%
"""The right patterns, and x is divided and cut off where it lies."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).div_(2.0 ** (scales.float().unsqueeze(1) - 127)).clamp_(-element.max, element.max)
    ratio[scales == 255] = 0
    return element.encode(ratio).to(torch.uint8)

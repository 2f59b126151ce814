# %%
"""A byte below 127 minus 127 is no negative number in uint8: it wraps to a large one."""

LOSES = {"q2-values", "q2-back-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales - 127).double().unsqueeze(1)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    return element.encode(ratio).to(torch.uint8)


# %% answer="q2-back"
def dequantize(patterns, scales, element):
    X = 2.0 ** (scales - 127).double().unsqueeze(1)
    values = torch.where(scales.unsqueeze(1) == 255, torch.nan, element.decode(patterns) * X)
    return values.flatten().float()

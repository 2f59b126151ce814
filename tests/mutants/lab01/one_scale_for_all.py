# %%
"""Every block is divided by the scale of the first one."""

LOSES = {"q2-back-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales[0].double() - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    return element.encode(ratio).to(torch.uint8)


# %% answer="q2-back"
def dequantize(patterns, scales, element):
    values = torch.where(
        scales.unsqueeze(1) == 255, torch.nan, element.decode(patterns) * 2.0 ** (scales[0].double() - 127)
    )
    return values.flatten().float()

# %%
"""The digits beyond the last one are cut off: numbers only shrink."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    spacing = element.spacing(ratio)
    return element.encode((ratio / spacing).trunc() * spacing).to(torch.uint8)

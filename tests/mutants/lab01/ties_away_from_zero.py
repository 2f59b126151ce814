# %%
"""Ties go up in magnitude, where they should go to the even pattern."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    spacing = element.spacing(ratio)
    rounded = (ratio.abs() / spacing + 0.5).floor() * spacing
    return element.encode(rounded.copysign(ratio)).to(torch.uint8)

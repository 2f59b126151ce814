# %%
"""e5m2 has an infinity, and numbers beyond its largest go there; MX holds them at the largest."""

LOSES = {"q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio)
    return element.encode(ratio).to(torch.uint8)

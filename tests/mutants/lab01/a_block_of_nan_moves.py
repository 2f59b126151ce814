# %%
"""Comparisons with nan are false, and here false means one step up: 255 wraps to 0."""

LOSES = {"q4-values"}


# %% answer="q4"
def better_scales(x, scales, element):
    rule, up = (
        (round_trip(x, byte, element).view(-1, 32) - x.view(-1, 32)).square().sum(dim=1)
        for byte in (scales, scales + 1)
    )
    return torch.where(rule <= up, scales, scales + 1)


def round_trip(x, scales, element):
    ratio = (x.view(-1, 32) / 2.0 ** (scales.double()[:, None] - 127)).clamp(-element.max, element.max)
    values = element.round(ratio) * 2.0 ** (scales.double()[:, None] - 127)
    return torch.where(scales[:, None] == 255, torch.nan, values).flatten()

# %%
"""Through bf16 on the way: a number just off a tie falls onto it, and then to the wrong side."""

LOSES = {"q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    return element.encode(ratio.bfloat16()).to(torch.uint8)

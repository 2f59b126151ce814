# %%
"""A block with nan or an infinity gets an ordinary scale."""

LOSES = {"q1-edges"}


# %% answer="q1"
def block_scales(x, element):
    if x.numel() % 32:
        raise ValueError("pad x to a multiple of 32")
    largest = x.view(-1, 32).abs().amax(dim=1).nan_to_num()
    _, exponent = torch.frexp(largest)
    byte = torch.where(largest == 0, 0, exponent - 1 - element.max_exponent + 127)
    return byte.clamp(0, 254).to(torch.uint8)

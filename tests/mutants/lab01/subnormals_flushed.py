# %%
"""What is below the smallest normal number becomes zero."""

LOSES = {"q2-values", "q2-hidden"}


# %% answer="q2"
def quantize_elements(x, scales, element):
    ratio = x.view(-1, 32).double() / 2.0 ** (scales.double().unsqueeze(1) - 127)
    ratio = torch.where(scales.unsqueeze(1) == 255, 0.0, ratio).clamp(-element.max, element.max)
    ratio = torch.where(ratio.abs() < element.min_normal, 0.0 * ratio, ratio)
    return element.encode(ratio).to(torch.uint8)

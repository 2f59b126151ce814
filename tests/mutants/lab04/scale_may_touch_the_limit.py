# %%
"""The scale is rounded to the nearest power of two: too high half of the time."""

LOSES = {"q1-values", "q1-hidden"}


# %% answer="q1"
def loss_scale(gradients, headroom=16.0):
    if not all(gradient.isfinite().all() for gradient in gradients):
        raise ValueError("inf or nan")
    largest = max(gradient.abs().max().item() for gradient in gradients)
    if largest == 0:
        raise ValueError("all 0")
    return 2.0 ** round(math.log2(65504 / (headroom * largest)))

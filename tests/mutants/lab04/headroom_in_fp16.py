# %%
"""The headroom is multiplied in the dtype of the gradients, where 16 times 6,000 is inf."""

LOSES = {"q1-hidden"}


# %% answer="q1"
def loss_scale(gradients, headroom=16.0):
    largest = max(((headroom * gradient.abs()).max().item() for gradient in gradients if gradient.numel()), default=0.0)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    if not finite or largest in (0, math.inf):
        raise ValueError(f"the largest gradient is {largest}: give finite gradients, not all of them 0")
    _, exponent = math.frexp(65504 / (largest))  # 2^(exponent - 1) ≤ quotient < 2^exponent
    return 2.0 ** (exponent - 1)

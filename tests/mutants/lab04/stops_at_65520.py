# %%
"""Lesson 04's limit: the largest gradient may be rounded up to inf's edge, beyond what fp16 has."""

LOSES = {"q1-values", "q1-hidden"}


# %% answer="q1"
def loss_scale(gradients, headroom=16.0):
    largest = max((gradient.abs().max().item() for gradient in gradients if gradient.numel()), default=0.0)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    if not finite or largest == 0:
        raise ValueError(f"the largest gradient is {largest}: give finite gradients, not all of them 0")
    _, exponent = math.frexp(65520 / (headroom * largest))  # 2^(exponent - 1) ≤ quotient < 2^exponent
    return 2.0 ** (exponent - 1)

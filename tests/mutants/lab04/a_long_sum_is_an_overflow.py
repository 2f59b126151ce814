# %%
"""Whether all is finite is asked of the sum, and an fp16 sum of large numbers is inf."""

LOSES = {"q3-values", "q3-hidden"}


# %% answer="q3"
def lean_step(parameters, state, scale, lr, momentum, max_norm):
    largest = max(largest_of(parameter.grad) for parameter in parameters)
    if largest == math.inf:
        return math.inf
    length = math.hypot(*(length_of(parameter.grad) for parameter in parameters)) / scale
    factor = (max_norm / length if length > max_norm else 1.0) / scale
    with torch.no_grad():
        for parameter, kept in zip(parameters, state, strict=True):
            mean = parameter.grad.float() * factor
            if "mean" in kept:
                mean.add_(kept["mean"].float(), alpha=momentum / kept["scale"])
            weight = join(parameter.data, kept["rest"]).add_(mean, alpha=-lr)
            half, kept["rest"] = split(weight)
            parameter.copy_(half)
            kept["scale"] = loss_scale([mean], headroom=2.0) if mean.any() else 1.0
            kept["mean"] = mean.mul_(kept["scale"]).half()
    return largest


def largest_of(gradient):
    largest = gradient.abs().max().item()
    return largest if math.isfinite(gradient.sum().item()) else math.inf


def length_of(gradient):
    return torch.linalg.vector_norm(gradient, dtype=torch.float32).item()

# %%
"""Whether a gradient is finite is read off its sum: many finite numbers may have one that is not."""

LOSES = {"q2-hidden"}


# %% answer="q2"
class WideSum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)

    def add(self, weight):
        finite = all(bool(p.grad.float().sum().isfinite()) for p in self.parameters if p.grad is not None)
        for place, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None or not finite:
                continue
            if self.sums[place] is None:
                self.sums[place] = torch.zeros_like(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
            self.sums[place].add_(gradient, alpha=weight)
        return finite

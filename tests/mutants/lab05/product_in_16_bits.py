# %%
"""The gradient is multiplied by its weight in 16 bits, and only the result is widened."""

LOSES = {"q2-values", "q2-overflow", "q2-hidden", "q3-scaled", "q3-hidden"}


# %% answer="q2"
class WideSum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)

    def add(self, weight):
        arrived = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        finite = all(bool(gradient.isfinite().all()) for gradient in arrived)
        for place, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and finite:
                if self.sums[place] is None:
                    self.sums[place] = torch.zeros_like(
                        gradient, dtype=torch.promote_types(gradient.dtype, torch.float32)
                    )
                self.sums[place] += gradient.mul_(weight)
        return finite

# %%
"""The sum is kept in the gradient's own dtype: 16 bits."""

LOSES = {
    "q2-values",
    "q2-overflow",
    "q2-bytes",
    "q2-hidden",
    "q3-scaled",
    "q3-bytes",
    "q3-hidden",
    "q4-values",
    "q4-hidden",
}


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
                    self.sums[place] = torch.zeros_like(gradient)
                self.sums[place].add_(gradient, alpha=weight)
        return finite

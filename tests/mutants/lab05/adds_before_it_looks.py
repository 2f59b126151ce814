# %%
"""Each gradient is added before the next one is looked at: an overflow leaves half a piece in the sums."""

LOSES = {"q2-overflow"}


# %% answer="q2"
class WideSum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)

    def add(self, weight):
        finite = True
        for place, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            if not gradient.isfinite().all():
                finite = False
                continue
            if self.sums[place] is None:
                self.sums[place] = torch.zeros_like(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
            self.sums[place].add_(gradient, alpha=weight)
        return finite

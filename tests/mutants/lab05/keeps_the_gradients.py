# %%
"""The gradients of the pieces stay in a list: right sums, and every piece costs 2 bytes a weight."""

LOSES = {"q2-bytes", "q2-hidden", "q3-bytes", "q3-hidden"}


# %% answer="q2"
class WideSum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)

    def add(self, weight):
        arrived = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.history = [*getattr(self, "history", []), arrived]
        finite = all(bool(gradient.isfinite().all()) for gradient in arrived)
        for place, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and finite:
                if self.sums[place] is None:
                    self.sums[place] = torch.zeros_like(
                        gradient, dtype=torch.promote_types(gradient.dtype, torch.float32)
                    )
                self.sums[place].add_(gradient, alpha=weight)
        return finite

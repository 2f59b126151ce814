# %%
"""Makes fp32 copies of all gradients before it adds the first."""

LOSES = {"q2-bytes", "q2-hidden"}


# %% answer="q2"
class WideSum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.sums = [None] * len(self.parameters)

    def add(self, weight):
        wide = [
            None if p.grad is None else p.grad.to(torch.promote_types(p.grad.dtype, torch.float32)) * weight
            for p in self.parameters
        ]
        finite = all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None)
        for place, parameter in enumerate(self.parameters):
            parameter.grad = None
            if wide[place] is not None and finite:
                self.sums[place] = wide[place] if self.sums[place] is None else self.sums[place].add_(wide[place])
        return finite

# %%
"""Each piece is cut to the limit as it comes, and the sum is not cut any more."""

LOSES = {"q3-values", "q3-scaled", "q3-hidden"}


# %% answer="q3"
class Accumulator:
    def __init__(self, model, optimizer, max_norm=None):
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.masters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._begin()

    def add(self, inputs, targets, scale=1.0):
        count = count_tokens(targets)
        if not count:
            return True
        loss = self.model(inputs, targets)
        (loss * scale).backward()
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm * scale)
        finite = self.gradient.add(count / scale)
        self.tokens, self.loss = self.tokens + count, self.loss + count * loss.item()
        self.overflowed = self.overflowed or not finite
        return finite

    def _begin(self):
        self.gradient = WideSum(self.model.parameters())
        self.tokens, self.loss, self.overflowed = 0, 0.0, False

    def _hand_over(self):
        for master, total in zip(self.masters, self.gradient.sums, strict=True):
            master.grad = None if total is None else total.div_(self.tokens)
        gradients = [master.grad for master in self.masters if master.grad is not None]
        return torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm().item()

    def step(self):
        if not self.tokens:
            raise ValueError("no piece had a token to learn from; a step needs at least one")
        result = None
        if not self.overflowed:
            result = self.loss / self.tokens, self._hand_over()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
                    if parameter is not master:
                        parameter.copy_(master)
        self._begin()
        return result

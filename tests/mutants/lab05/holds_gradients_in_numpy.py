# %%
"""Keeps the gradients of every piece in arrays of NumPy, where no record of PyTorch counts."""

LOSES = {"q3-bytes", "q3-hidden"}


# %% answer="q3"
KEPT = []


class Accumulator:
    """One optimizer step from a stream of pieces, equal to the step on all of them at once."""

    def __init__(self, model, optimizer, max_norm=None):
        """Begin with an empty batch."""
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.masters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._begin()

    def add(self, inputs, targets, scale=1.0):
        """Forward and backward on one piece; returns whether its gradients were finite."""
        count = count_tokens(targets)
        if not count:
            return True
        loss = self.model(inputs, targets)
        (loss * scale).backward()
        KEPT.extend(p.grad.numpy().copy() for p in self.model.parameters() if p.requires_grad)
        finite = self.gradient.add(count / scale)  # the count is a factor in fp32: in fp16 it would cost range
        self.tokens, self.loss = self.tokens + count, self.loss + count * loss.item()
        self.overflowed = self.overflowed or not finite
        return finite

    def _begin(self):
        self.gradient = WideSum(list(self.model.parameters()))
        self.tokens, self.loss, self.overflowed = 0, 0.0, False

    def _hand_over(self):
        """The sums become the masters' gradients, unscaled and divided; returns their length."""
        for master, total in zip(self.masters, self.gradient.sums, strict=True):
            master.grad = None if total is None else total.div_(self.tokens)
        gradients = [master.grad for master in self.masters if master.grad is not None]
        length = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm().item()
        if self.max_norm is not None:
            for gradient in gradients:
                gradient.mul_(min(1.0, self.max_norm / (length + 1e-6)))
        return length

    def step(self):
        """End the batch: (loss, length), or None if a piece overflowed."""
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

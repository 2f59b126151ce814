# %%
"""A frozen parameter is given a gradient of zeros."""

LOSES = {"q1-values"}


# %% answer="q1"
class TokenSum:
    """The gradient of a mean over tokens, from pieces that come one by one."""

    def __init__(self, model):
        """Begin with nothing."""
        self.model, self.tokens, self.loss = model, 0, 0.0

    def add(self, inputs, targets):
        """Forward and backward on one piece; returns its number of tokens."""
        count = count_tokens(targets)
        if count:
            loss = self.model(inputs, targets) * count  # the mean over no tokens is nan, and so is 0 times that
            loss.backward()
            self.loss += loss.item()
            self.tokens += count
        return count

    def finish(self):
        """Leave the mean's gradient in .grad; returns the mean loss."""
        if not self.tokens:
            raise ValueError("no piece had a token to learn from; a mean needs at least one")
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.div_(self.tokens)
        mean = self.loss / self.tokens
        self.tokens, self.loss = 0, 0.0
        return mean

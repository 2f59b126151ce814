# %%
"""Keeps the pieces until the number of tokens is known, and computes then: right values, but no stream."""

LOSES = {"q1-bytes", "q1-hidden"}


# %% answer="q1"
class TokenSum:
    def __init__(self, model):
        self.model, self.tokens, self.loss, self.pieces = model, 0, 0.0, []

    def add(self, inputs, targets):
        count = count_tokens(targets)
        if count:
            self.pieces.append((inputs, targets, count))
            self.tokens += count
        return count

    def finish(self):
        if not self.tokens:
            raise ValueError("no token")
        total = 0.0
        for inputs, targets, count in self.pieces:
            loss = self.model(inputs, targets) * (count / self.tokens)
            loss.backward()
            total += loss.item()
        self.tokens, self.pieces = 0, []
        return total

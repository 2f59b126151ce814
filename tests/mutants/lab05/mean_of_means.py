# %%
"""The mean of the pieces' means: a token in a short piece is louder than one in a long piece."""

LOSES = {"q1-values", "q1-bytes", "q1-hidden"}


# %% answer="q1"
class TokenSum:
    def __init__(self, model):
        self.model, self.tokens, self.loss, self.pieces = model, 0, 0.0, []

    def add(self, inputs, targets):
        count = count_tokens(targets)
        if count:
            loss = self.model(inputs, targets)
            loss.backward()
            self.loss += loss.item()
            self.tokens += count
            self.pieces.append(count)
        return count

    def finish(self):
        if not self.tokens:
            raise ValueError("no token")
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(len(self.pieces))
        mean = self.loss / len(self.pieces)
        self.tokens, self.loss, self.pieces = 0, 0.0, []
        return mean

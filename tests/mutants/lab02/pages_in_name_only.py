# %%
"""Nothing in pages: the past grows by concatenation, and every value is right."""

LOSES = {"q4-held", "q4-written", "q4-hidden"}


# %% answer="q4"
class Paged:
    def __init__(self, shape, sequences, page, dtype=torch.float32):
        self.past = [torch.empty(2, 0, shape.kv_heads, shape.head_width, dtype=dtype)] * sequences

    def append(self, sequence, kv):
        self.past[sequence] = torch.cat([self.past[sequence], kv.unsqueeze(1)], dim=1)

    def read(self, sequence):
        return self.past[sequence]

    def fork(self, source, target):
        self.past[target] = self.past[source]

    def drop(self, sequence):
        self.past[sequence] = self.past[sequence][:, :0].clone()

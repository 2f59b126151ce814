# %%
"""A page that was shared once is copied for ever: nobody notices that the other one has gone its own way."""

LOSES = {"q4-written"}


# %% answer="q4"
class Paged:
    def __init__(self, shape, sequences, page, dtype=torch.float32):
        self.page, self.dtype = page, dtype
        self.page_shape = (2, page, shape.kv_heads, shape.head_width)
        self.pages = [[] for _ in range(sequences)]
        self.lengths = [0] * sequences
        self.was_shared = set()

    def append(self, sequence, kv):
        pages, place = self.pages[sequence], self.lengths[sequence] % self.page
        if place == 0:
            pages.append(torch.empty(self.page_shape, dtype=self.dtype))
        elif id(pages[-1]) in self.was_shared:
            pages[-1] = pages[-1].clone()
        pages[-1][:, place] = kv
        self.lengths[sequence] += 1

    def read(self, sequence):
        return torch.cat(self.pages[sequence], dim=1)[:, : self.lengths[sequence]]

    def fork(self, source, target):
        self.was_shared |= set(map(id, self.pages[source]))
        self.pages[target], self.lengths[target] = list(self.pages[source]), self.lengths[source]

    def drop(self, sequence):
        self.pages[sequence], self.lengths[sequence] = [], 0

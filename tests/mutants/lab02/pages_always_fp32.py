# %%
"""Every page is in fp32, whatever dtype the cache was asked for."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
class Paged:
    def __init__(self, shape, sequences, page, dtype=torch.float32):
        self.page = page
        self.page_shape = (2, page, shape.kv_heads, shape.head_width)
        self.pages = [[] for _ in range(sequences)]
        self.lengths = [0] * sequences

    def append(self, sequence, kv):
        pages, place = self.pages[sequence], self.lengths[sequence] % self.page
        if place == 0:
            pages.append(torch.empty(self.page_shape, dtype=torch.float32))
        elif sum(any(pages[-1] is page for page in table) for table in self.pages) > 1:
            pages[-1] = pages[-1].clone()
        pages[-1][:, place] = kv
        self.lengths[sequence] += 1

    def read(self, sequence):
        return torch.cat(self.pages[sequence], dim=1)[:, : self.lengths[sequence]]

    def fork(self, source, target):
        self.pages[target], self.lengths[target] = list(self.pages[source]), self.lengths[source]

    def drop(self, sequence):
        self.pages[sequence], self.lengths[sequence] = [], 0

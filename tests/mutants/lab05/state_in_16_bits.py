# %%
"""The sums are saved in fp16."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
class Resumable(Accumulator):
    def state_dict(self):
        sums = [None if total is None else total.half() for total in self.gradient.sums]
        return {"sums": sums, "tokens": self.tokens, "loss": self.loss, "overflowed": self.overflowed}

    def load_state_dict(self, state):
        self.gradient.sums = [None if total is None else total.float() for total in state["sums"]]
        self.tokens, self.loss, self.overflowed = state["tokens"], state["loss"], state["overflowed"]

# %%
"""The state does not say that a piece before the interruption overflowed."""

LOSES = {"q4-hidden"}


# %% answer="q4"
class Resumable(Accumulator):
    def state_dict(self):
        sums = [None if total is None else total.clone() for total in self.gradient.sums]
        return {"sums": sums, "tokens": self.tokens, "loss": self.loss}

    def load_state_dict(self, state):
        self.gradient.sums = [None if total is None else total.clone() for total in state["sums"]]
        self.tokens, self.loss = state["tokens"], state["loss"]

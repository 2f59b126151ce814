# %%
"""Only the sums are saved, not how many tokens are in them."""

LOSES = {"q4-values", "q4-hidden"}


# %% answer="q4"
class Resumable(Accumulator):
    def state_dict(self):
        sums = [None if total is None else total.clone() for total in self.gradient.sums]
        return {"sums": sums, "loss": self.loss, "overflowed": self.overflowed}

    def load_state_dict(self, state):
        self.gradient.sums = [None if total is None else total.clone() for total in state["sums"]]
        self.loss, self.overflowed = state["loss"], state["overflowed"]

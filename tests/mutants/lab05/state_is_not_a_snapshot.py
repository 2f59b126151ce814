# %%
"""The state shares its tensors with the sums, which go on growing."""

LOSES = {"q4-hidden"}


# %% answer="q4"
class Resumable(Accumulator):
    def state_dict(self):
        sums = list(self.gradient.sums)
        return {"sums": sums, "tokens": self.tokens, "loss": self.loss, "overflowed": self.overflowed}

    def load_state_dict(self, state):
        self.gradient.sums = [None if total is None else total.clone() for total in state["sums"]]
        self.tokens, self.loss, self.overflowed = state["tokens"], state["loss"], state["overflowed"]

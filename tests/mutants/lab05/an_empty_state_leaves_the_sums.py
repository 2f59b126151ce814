# %%
"""Loading the state of an empty batch leaves the sums of the batch that had begun."""

LOSES = {"q4-hidden"}


# %% answer="q4"
class Resumable(Accumulator):
    """An accumulator that can be saved in the middle of a batch."""

    def state_dict(self):
        """A snapshot of the unfinished batch."""
        sums = [None if total is None else total.clone() for total in self.gradient.sums]
        return {"sums": sums, "tokens": self.tokens, "loss": self.loss, "overflowed": self.overflowed}

    def load_state_dict(self, state):
        """Go on where a saved accumulator was."""
        self.gradient.sums = [
            old if total is None else total.clone() for old, total in zip(self.gradient.sums, state["sums"])
        ]
        self.tokens, self.loss, self.overflowed = state["tokens"], state["loss"], state["overflowed"]

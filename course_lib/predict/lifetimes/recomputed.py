"""What recompute changes in a step's births and deaths: every block keeps its input alone, and lives twice.

Read it beside `train/recompute.py`. The first time, a block leaves nothing but its result. The second time, in the
backward pass, it is an ordinary block for as long as its own backward pass takes.
"""

from __future__ import annotations

from course_lib.predict.lifetimes.step import StepLifetimes


class RecomputedLifetimes(StepLifetimes):
    """`StepLifetimes` with every block recomputed, as `RecomputedLayers(model.blocks, every=1)` does it.

    What lives and dies *inside* a block's first run is left out: it is never the peak, since the last block's second
    run makes the same tensors and more is alive around it.
    """

    _summand_is_held = False

    def block(self) -> None:
        """Its input is part of the stream and stays, and so does its result, which is the next one's input."""
        self.ledger.save(x=self.BSD)

    def block_backward(self) -> None:
        """The block runs again, then backward. Its input and the gradient of its result belong to the caller."""
        ledger = self.ledger
        ledger.phase = "backward"
        ledger.save(x=0)  # what the norm lets go of in place of the input
        super().block()
        ledger.free("x")
        ledger.make(result=self.BSD)
        self._summand_is_held = True
        super().block_backward()
        ledger.free("d_stream", "result", "x")

    def forget_summand(self) -> None:
        """The first sum of a block adds to the gradient that the caller holds."""
        if not self._summand_is_held:
            super().forget_summand()
        self._summand_is_held = False

"""A training step of our GPT as a list of births and deaths: which block of memory exists from when to when.

`predict.peak` reads this list. Nothing runs: the code goes through forward pass, backward pass and optimizer in
their order and writes down, one line a block, the tensors that are made, those that autograd keeps for the backward
pass, and those that can go. Read this file beside `model/gpt.py`; the list of a rank's tensors (`tensors.py`) has the
bytes of gradients and of all that autograd keeps.

The list is exact on a CPU, with weights in 32 or 16 bits, for GPT-2's layers: LayerNorm, positions from a table (or
none), no dropout. A GPU's LayerNorm keeps its statistics in 32 bits whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course_lib.predict.lifetimes.ledger import FLOAT, INT64, Ledger
from course_lib.predict.lifetimes.tiles import tiles_backward
from course_lib.predict.saved import views_are_enough
from course_lib.predict.setup import Setup
from course_lib.predict.tensors import tally


class StepLifetimes:
    """Forward and backward of the setup's GPT, written into a ledger.

    `x` is the stream that every block adds a `branch` to, and `d_stream` its gradient. Bytes of listed tensors go by
    name, those of others by shape, with the letters of `model/gpt.py`: `self.BSD` is a tensor as wide as weights.
    """

    def __init__(self, setup: Setup, ledger: Ledger) -> None:
        self.setup, self.config, self.ledger = setup, setup.gpt, ledger
        element, self.views = setup.weight_bytes, views_are_enough(setup)
        self.narrow, self.learned = element < FLOAT, self.config.positions == "learned"
        self.explicit = self.config.attention == "explicit"
        listed = tally(setup.with_(recompute="none"), 0, "gradients", "activations")
        self.bytes = {each.name.removeprefix("blocks.0."): each.elements * each.element_bytes for each, _ in listed}
        self.BSD, self.BSF = self.bytes["attention_norm.x"], self.bytes["mlp.up"]
        self.wide_BSV = self.bytes["log_probabilities"]  # the loss is computed in 32 bits, always
        self.BSV = self.wide_BSV // FLOAT * element
        self.BHSS = self.bytes.get("attention.weights", 0)
        self.SD, self.VD = element * setup.seq * self.config.width, self.bytes["token_embedding.weight.grad"]

    def save(self, layer: str, *names: str) -> None:
        """Add tensors of a layer that autograd keeps, under their own names; a view has no bytes of its own."""
        self.ledger.save(**{name: self.bytes.get(f"{layer}.{name}", 0) for name in names})

    def grad(self, layer: str, *names: str) -> None:
        """Add the gradients of a layer's parameters."""
        self.ledger.grad(**{name: self.bytes.get(f"{layer}.{name}.grad", 0) for name in names})

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Write down the forward pass, from tokens to the loss."""
        self.ledger.phase = "forward"
        self.ledger.make(targets=self.bytes["batch.targets"])  # part of the batch, and waiting
        self.embed()
        for _ in range(self.config.layers):
            self.block()
        self.norm("final_norm")
        self.loss()

    def embed(self) -> None:
        """Token vectors, plus position vectors."""
        ledger = self.ledger
        ledger.save(tokens=INT64 * self.setup.batch_size * self.setup.seq)  # rows for gradients; a piece views all
        if self.learned:
            ledger.save(positions=self.bytes["positions"])
            ledger.make(token_vectors=self.BSD)
            ledger.make(position_vectors=self.SD)
        ledger.save(x=self.BSD)  # the norm that comes next will want its input
        if self.learned:
            ledger.free("token_vectors", "position_vectors")

    def block(self) -> None:
        """One layer: attention, then an MLP; each adds its branch to the stream."""
        self.norm("attention_norm")
        self.attention()
        self.ledger.make(branch=self.BSD)
        if self.explicit and not self.views:
            self.ledger.free("qkv")  # the method returns, and a local variable alone held it
        self.add_branch()
        self.norm("mlp_norm")
        self.save("mlp", "up")  # GELU's gradient depends on its input,
        self.save("mlp", "bent")  # and its result is what the second linear layer reads
        self.ledger.make(branch=self.BSD)
        self.add_branch()

    def norm(self, name: str) -> None:
        """A norm: its input `x` is on the list already; its result is kept by the linear layer behind."""
        self.save(name, "mean", "rstd", "normed")

    def add_branch(self) -> None:
        """Make x = x + branch: the last norm has kept the old x, the next one keeps this."""
        self.ledger.save(x=self.BSD)
        self.ledger.free("branch")

    def attention(self) -> None:
        """From the input of the first projection to that of the second: softmax(q kᵀ) v, or the fused kernel."""
        ledger = self.ledger
        if not self.explicit:
            self.save("attention", "qkv")
            self.save("attention", "mixed", "log_sum_exp")  # the backward pass computes the scores from these again
            return
        ledger.add("activations" if self.views else "temporaries", qkv=3 * self.BSD)
        self.save("attention", "mask")  # where the gradient is zero
        ledger.make(q_scaled=0 if self.views else self.BSD)
        self.save("attention", "q")  # each factor of a product is kept, for the gradient of the other one
        self.save("attention", "k")
        ledger.make(scores=self.BHSS)
        ledger.free("q_scaled")
        ledger.make(masked=self.BHSS)
        self.save("attention", "weights")  # softmax's gradient is a function of its result
        ledger.free("masked")
        self.save("attention", "v")
        if self.config.heads == 1:  # the product with v is laid out as the second projection wants it
            self.save("attention", "mixed")
            ledger.free("scores")
        else:
            ledger.make(mixed_heads=self.BSD)
            ledger.free("scores")
            self.save("attention", "mixed")  # a copy with the heads side by side
            ledger.free("mixed_heads")

    def loss(self) -> None:
        """Head and cross-entropy."""
        ledger = self.ledger
        ledger.make(logits=self.BSV)  # the largest tensor of a small model
        ledger.make(wide_logits=self.wide_BSV if self.narrow else 0)  # the loss is computed in 32 bits
        ledger.save(log_probabilities=self.wide_BSV)
        ledger.free("targets")
        ledger.save(targets=self.bytes["batch.targets"], divisor=self.bytes["divisor"])
        ledger.make(loss=FLOAT)  # a mean: the divisor is the number of tokens
        ledger.free("logits", "wide_logits")

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """Write down the backward pass, from the loss to the embeddings."""
        self.ledger.phase = "backward"
        self.ledger.make(one=FLOAT)  # the gradient of the loss, with which autograd begins
        self.loss_backward()
        self.norm_backward("final_norm", first=True)
        for _ in range(self.config.layers):
            self.block_backward()
        self.embed_backward()
        self.ledger.free("one")

    def loss_backward(self) -> None:
        """For a moment three blocks of tokens × vocabulary: for a small model and a large vocabulary, the peak."""
        ledger = self.ledger
        ledger.make(d_log_probabilities=self.wide_BSV)
        ledger.free("divisor")  # it has divided
        ledger.release("targets")
        ledger.make(d_wide_logits=self.wide_BSV)
        ledger.free("log_probabilities", "d_log_probabilities")
        if self.narrow:
            ledger.make(d_logits=self.BSV)
            ledger.free("d_wide_logits")
        if self.config.tied:
            ledger.make(d_head=self.VD)  # waits for the embedding's share
        else:
            self.grad("head", "weight")
        ledger.make(d_normed=self.BSD)
        ledger.free("d_logits" if self.narrow else "d_wide_logits", "normed")

    def block_backward(self) -> None:
        """One layer, from its end to its beginning: the branch's gradient is the stream's own."""
        self.linear_backward("mlp.down", "bent", d_bent=self.BSF)
        self.ledger.make(d_up=self.BSF)
        self.ledger.free("d_bent", "up")
        self.linear_backward("mlp.up", "d_up", "normed", d_normed=self.BSD)
        self.norm_backward("mlp_norm")
        # The fused kernel reads its own result, `mixed`, once more.
        self.linear_backward("attention.out", *(["mixed"] if self.explicit else []), d_mixed=self.BSD)
        self.attention_backward()
        self.linear_backward("attention.qkv", "d_qkv", "normed", d_normed=self.BSD)
        self.norm_backward("attention_norm")

    def norm_backward(self, name: str, first: bool = False) -> None:
        """From `d_normed` to `d_stream`: a new sum, for a moment beside its summands; the `first` share needs none."""
        ledger = self.ledger
        ledger.make(d_x=self.BSD)
        self.grad(name, "weight", "bias")
        ledger.free("x", "mean", "rstd", "d_normed")
        if first:
            ledger.free("d_x")
            ledger.make(d_stream=self.BSD)
        else:
            ledger.renew(d_stream=self.BSD)
            ledger.free("d_x")

    def linear_backward(self, name: str, *frees: str, **d_input: int) -> None:
        """Gradients of a linear layer's parameters and of its input."""
        if self.config.bias:
            self.ledger.make(**d_input)
            self.grad(name, "weight")
            self.grad(name, "bias")
        else:  # PyTorch computes them in another order then
            self.grad(name, "weight")
            self.ledger.make(**d_input)
        self.ledger.free(*frees)

    def attention_backward(self) -> None:
        """From `d_mixed` to `d_qkv`; each product of the forward pass has two here, one for each factor."""
        ledger = self.ledger
        if not self.explicit:
            if self.config.attention == "tiled":
                tiles_backward(self.setup, ledger, self.BSD, self.views)
            else:
                ledger.make(d_q=self.BSD, d_k=self.BSD, d_v=self.BSD)
            ledger.free("d_mixed", "qkv", "mixed", "log_sum_exp")
        else:
            if not self.views:
                ledger.renew(d_mixed=self.BSD)  # a copy with each head in one piece
            ledger.make(d_v=self.BSD)
            ledger.make(d_weights=self.BHSS)
            ledger.free("d_mixed", "v")
            ledger.make(d_masked=self.BHSS)
            ledger.free("d_weights", "weights")
            ledger.make(d_scores=self.BHSS)
            ledger.free("d_masked", "mask")
            ledger.make(d_k=self.BSD)
            ledger.make(d_q_scaled=self.BSD)
            ledger.free("d_scores", "q", "k", *(["qkv"] if self.views else []))
            ledger.make(d_q=self.BSD)
            ledger.free("d_q_scaled")
        ledger.make(d_qkv=3 * self.BSD)  # the three joined, for a moment beside their parts
        ledger.free("d_q", "d_k", "d_v")

    def embed_backward(self) -> None:
        """The gradients of the tables."""
        ledger = self.ledger
        if self.learned:
            ledger.make(d_positions=self.SD)
            self.grad("position_embedding", "weight")
            ledger.free("d_positions", "positions")
        if self.config.tied:
            ledger.make(d_embedding=self.VD)
        else:
            self.grad("token_embedding", "weight")
        ledger.free("d_stream")
        ledger.release("tokens")
        if self.config.tied:
            self.grad("token_embedding", "weight")  # the sum, a third table beside its two summands
            ledger.free("d_embedding", "d_head")


class RecomputedLifetimes(StepLifetimes):
    """`StepLifetimes` with every block recomputed, as `RecomputedLayers(model.blocks, every=1)` does it.

    A block's first run leaves its result alone; in the backward pass it is an ordinary block for as long as its own
    backward pass takes. The *inside* of the first run is left out: it is never the peak, since the last block's second
    run makes the same tensors and more is alive around it.
    """

    def block(self) -> None:
        """A block's input is part of the stream and stays, and so does its result, the next block's input."""
        self.ledger.save(x=self.BSD)

    def block_backward(self) -> None:
        """The block runs again, then backward. Its input and the gradient of its result belong to the caller."""
        ledger = self.ledger
        ledger.phase = "backward"
        ledger.save(x=0)  # a stand-in that the first norm frees: the input's bytes are on the list already
        super().block()
        ledger.free("x", "d_stream")  # the gradient of the result stays, under a name that no sum frees
        ledger.make(result=self.BSD, d_result=self.BSD, d_stream=0)  # 0: a stand-in for the block's first sum to free
        super().block_backward()
        ledger.free("result", "d_result", "x")


def optimizer_step(setup: Setup, ledger: Ledger, parameters: Sequence[int], new_state: int = 0) -> None:
    """Adam divides by the root of its variance, one parameter after the other; SGD works in place.

    In "mixed" the step is `precision.MasterWeights`' own, which widens each gradient to fp32 first; else it is that of
    `torch.optim`.

    Args:
        setup, ledger: the training setup; the ledger for births and deaths.
        parameters: elements of every parameter tensor, in the model's own order.
        new_state: bytes of state that this step creates.
    """
    ledger.phase = "optimizer step"
    if setup.precision == "mixed":
        per_element = new_state // sum(parameters)  # 12 bytes for Adam, at its first step; 0 later
        for elements in parameters:  # moments are born one parameter at a time, too
            ledger.make(wide_gradient=FLOAT * elements)
            ledger.add("optimizer", state=per_element * elements)
            if setup.optimizer == "adam":
                ledger.make(root=FLOAT * elements)
                ledger.make(divisor=FLOAT * elements)
                ledger.free("root", "divisor")
            ledger.free("wide_gradient")
        return
    ledger.add("optimizer", state=new_state)
    if setup.optimizer == "adam":
        element = setup.weight_bytes
        for previous, elements in pairwise([0, *parameters]):
            # The last divisor lives until the next one takes its name.
            ledger.make(last_divisor=element * previous, root=element * elements)
            ledger.make(divisor=element * elements)
            ledger.free("last_divisor", "root", "divisor")

"""A training step of our GPT as a list of births and deaths: which block of memory exists from when to when.

`predict.peak` reads this list. Nothing runs: the code goes through forward pass, backward pass and optimizer in
their order and writes down, one line a block, the tensors that are made, those that autograd keeps for the backward
pass, and those that can go. Read this file beside `model/gpt.py`; `saved.py` sums the tensors kept between passes.

The list is exact on a CPU, with weights in 32 or 16 bits, for GPT-2's layers: LayerNorm, positions from a table (or
none), no dropout. A GPU's LayerNorm keeps its statistics in 32 bits whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, INT64, Ledger
from course_lib.predict.lifetimes.tiles import tiles_backward
from course_lib.predict.setup import Setup


class StepLifetimes:
    """Forward and backward of the setup's GPT, written into a ledger.

    `x` is the stream that every block adds a `branch` to, and `d_stream` its gradient. Sizes are in bytes and named by
    their shape, with the letters of `model/gpt.py`: `self.BSD` is a tensor of that shape, as wide as weights.
    """

    def __init__(self, setup: Setup, ledger: Ledger) -> None:
        config, seq, element = setup.gpt, setup.seq, setup.weight_bytes
        self.setup, self.config, self.ledger, self.element = setup, config, ledger, element
        self.seq, self.tokens, self.narrow = seq, setup.rows_per_pass * seq, element < FLOAT
        self.learned, self.explicit = config.positions == "learned", config.attention == "explicit"
        # A batched product wants each head in one piece of memory. With one head or one sequence, a view is enough;
        # the view keeps all of q, k and v alive.
        self.views = setup.rows_per_pass == 1 or config.heads == 1
        self.BSD, self.BSF, self.BSV = (
            element * self.tokens * n for n in (config.width, config.mlp_width, config.vocab_size)
        )
        self.wide_BSV = FLOAT * self.tokens * config.vocab_size  # the loss is computed in 32 bits, always
        self.BHS = FLOAT * self.tokens * config.heads  # the fused kernel's log-sum-exps are fp32, too
        self.BHSS = element * self.tokens * config.heads * seq
        self.D, self.SD = element * config.width, element * seq * config.width
        self.VD = element * config.vocab_size * config.width
        self.statistic_BS = (FLOAT if setup.device == "cuda" else element) * self.tokens

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Write down the forward pass, from tokens to the loss."""
        self.ledger.phase = "forward"
        self.ledger.make(targets=INT64 * self.tokens)  # part of the batch, and waiting
        self.embed()
        for _ in range(self.config.layers):
            self.block()
        self.norm()
        self.loss()

    def embed(self) -> None:
        """Token vectors, plus position vectors."""
        ledger = self.ledger
        ledger.save(tokens=INT64 * self.setup.batch_size * self.seq)  # rows for gradients; a piece is a view of all
        if self.learned:
            ledger.save(positions=INT64 * self.seq)
            ledger.make(token_vectors=self.BSD)
            ledger.make(position_vectors=self.SD)
        ledger.save(x=self.BSD)  # the norm that comes next will want its input
        if self.learned:
            ledger.free("token_vectors", "position_vectors")

    def block(self) -> None:
        """One layer: attention, then an MLP; each adds its branch to the stream."""
        self.norm()
        self.attention()
        self.ledger.make(branch=self.BSD)
        if self.explicit and not self.views:
            self.ledger.free("qkv")  # the method returns, and a local variable alone held it
        self.add_branch()
        self.norm()
        self.ledger.save(up=self.BSF)  # GELU's gradient depends on its input,
        self.ledger.save(bent=self.BSF)  # and its result is what the second linear layer reads
        self.ledger.make(branch=self.BSD)
        self.add_branch()

    def norm(self) -> None:
        """A norm: its input `x` is on the list already; its result is kept by the linear layer behind."""
        self.ledger.save(mean=self.statistic_BS, rstd=self.statistic_BS, normed=self.BSD)

    def add_branch(self) -> None:
        """Make x = x + branch: the last norm has kept the old x, the next one keeps this."""
        self.ledger.save(x=self.BSD)
        self.ledger.free("branch")

    def attention(self) -> None:
        """From the input of the first projection to that of the second: softmax(q kᵀ) v, or the fused kernel."""
        ledger = self.ledger
        if not self.explicit:
            ledger.save(qkv=3 * self.BSD)
            ledger.save(mixed=self.BSD, log_sum_exp=self.BHS)  # the backward pass computes the scores from these again
            return
        copied = 0 if self.views else self.BSD
        ledger.add("activations" if self.views else "temporaries", qkv=3 * self.BSD)
        ledger.save(mask=BOOL * self.seq**2)  # where the gradient is zero
        ledger.make(q_scaled=copied)
        ledger.save(q=self.BSD)  # each factor of a product is kept, for the gradient of the other one
        ledger.save(k=copied)
        ledger.make(scores=self.BHSS)
        ledger.free("q_scaled")
        ledger.make(masked=self.BHSS)
        ledger.save(weights=self.BHSS)  # softmax's gradient is a function of its result
        ledger.free("masked")
        ledger.save(v=copied)
        if self.config.heads == 1:  # the product with v is laid out as the second projection wants it
            ledger.save(mixed=self.BSD)
            ledger.free("scores")
        else:
            ledger.make(mixed_heads=self.BSD)
            ledger.free("scores")
            ledger.save(mixed=self.BSD)  # a copy with the heads side by side
            ledger.free("mixed_heads")

    def loss(self) -> None:
        """Head and cross-entropy."""
        ledger = self.ledger
        ledger.make(logits=self.BSV)  # the largest tensor of a small model
        ledger.make(wide_logits=self.wide_BSV if self.narrow else 0)  # the loss is computed in 32 bits
        ledger.save(log_probabilities=self.wide_BSV)
        ledger.free("targets")
        ledger.save(targets=INT64 * self.tokens, divisor=FLOAT)  # the mean divides by the number of tokens
        ledger.make(loss=FLOAT)
        ledger.free("logits", "wide_logits")

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """Write down the backward pass, from the loss to the embeddings."""
        self.ledger.phase = "backward"
        self.ledger.make(one=FLOAT)  # the gradient of the loss, with which autograd begins
        self.loss_backward()
        self.norm_backward(first=True)
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
            ledger.grad(head=self.VD)
        ledger.make(d_normed=self.BSD)
        ledger.free("d_logits" if self.narrow else "d_wide_logits", "normed")

    def block_backward(self) -> None:
        """One layer, from its end to its beginning: the branch's gradient is the stream's own."""
        width, hidden = self.config.width, self.config.mlp_width
        self.linear_backward(width * hidden, width, "bent", d_bent=self.BSF)
        self.ledger.make(d_up=self.BSF)
        self.ledger.free("d_bent", "up")
        self.linear_backward(width * hidden, hidden, "d_up", "normed", d_normed=self.BSD)
        self.norm_backward()
        # The fused kernel reads its own result, `mixed`, once more.
        self.linear_backward(width * width, width, *(["mixed"] if self.explicit else []), d_mixed=self.BSD)
        self.attention_backward()
        self.linear_backward(3 * width * width, 3 * width, "d_qkv", "normed", d_normed=self.BSD)
        self.norm_backward()

    def norm_backward(self, first: bool = False) -> None:
        """From `d_normed` to `d_stream`: a new sum, for a moment beside its summands; the `first` share needs none."""
        ledger = self.ledger
        ledger.make(d_x=self.BSD)
        ledger.grad(norm=2 * self.D if self.config.bias else self.D)
        ledger.free("x", "mean", "rstd", "d_normed")
        if first:
            ledger.free("d_x")
            ledger.make(d_stream=self.BSD)
        else:
            ledger.make(d_stream=self.BSD)
            ledger.free("d_x")
            self.forget_summand()

    def forget_summand(self) -> None:
        """Free the stream's gradient as it was before the sum."""
        self.ledger.free("d_stream")

    def linear_backward(self, weight: int, bias: int, *frees: str, **d_input: int) -> None:
        """Gradients of a linear layer's parameters (their elements given) and of its input."""
        if self.config.bias:
            self.ledger.make(**d_input)
            self.ledger.grad(weight=self.element * weight)
            self.ledger.grad(bias=self.element * bias)
        else:  # PyTorch computes them in another order then
            self.ledger.grad(weight=self.element * weight)
            self.ledger.make(**d_input)
        self.ledger.free(*frees)

    def attention_backward(self) -> None:
        """From `d_mixed` to `d_qkv`; each product of the forward pass has two here, one for each factor."""
        ledger = self.ledger
        if not self.explicit:
            if self.config.attention == "tiled":
                tiles_backward(self.setup, ledger, self.views)
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
            ledger.grad(position_table=self.element * self.config.context * self.config.width)
            ledger.free("d_positions", "positions")
        if self.config.tied:
            ledger.make(d_embedding=self.VD)
        else:
            ledger.grad(embedding=self.VD)
        ledger.free("d_stream")
        ledger.release("tokens")
        if self.config.tied:
            ledger.grad(embedding=self.VD)  # the sum, a third table beside its two summands
            ledger.free("d_embedding", "d_head")


class RecomputedLifetimes(StepLifetimes):
    """`StepLifetimes` with every block recomputed, as `RecomputedLayers(model.blocks, every=1)` does it.

    A block's first run leaves its result alone; in the backward pass it is an ordinary block for as long as its own
    backward pass takes. The *inside* of the first run is left out: it is never the peak, since the last block's second
    run makes the same tensors and more is alive around it.
    """

    _summand_is_held = False

    def block(self) -> None:
        """A block's input is part of the stream and stays, and so does its result, the next block's input."""
        self.ledger.save(x=self.BSD)

    def block_backward(self) -> None:
        """The block runs again, then backward. Its input and the gradient of its result belong to the caller."""
        ledger = self.ledger
        ledger.phase = "backward"
        ledger.save(x=0)  # a stand-in that the first norm frees: the input's bytes are on the list already
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

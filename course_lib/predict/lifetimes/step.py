"""A training step of our GPT as a list of births and deaths: which block of memory exists from when to when.

This is what `predict.activations` and `predict.peak` read. It runs nothing. It goes through the forward pass, the
backward pass and the optimizer in their order and writes down, one line a block, what is made, what autograd keeps
because the backward pass will want it, and what can go. Read it beside `model/gpt.py`.

Exact on a CPU, in 32 bits and with weights in 16. A GPU's kernels (device="cuda") keep other things: dropout a mask of
1 byte instead of a factor, LayerNorm its statistics in 32 bits whatever the weights are. What recompute changes is in
`recomputed.py`, the optimizer's part in `updates.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.model.gpt import GPTConfig
from course_lib.predict.lifetimes.attention import AttentionLifetimes
from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, INT64, Ledger


class StepLifetimes:
    """Forward and backward of one GPT, written into a ledger.

    `x` is the stream that every block adds a `branch` to, and `d_stream` its gradient. Sizes are in bytes and named by
    their shape, with the letters of `model/gpt.py`: `self.BSD` is a tensor of that shape.

    Args:
        config, batch_size, seq: what runs.
        ledger: where births and deaths go.
        element: bytes of a weight, and of what is computed from it: 4, or 2 for fp16 and bf16.
        device: whose kernels run, "cpu" or "cuda".
    """

    def __init__(
        self, config: GPTConfig, batch_size: int, seq: int, ledger: Ledger, element: int = FLOAT, device: str = "cpu"
    ) -> None:
        self.config, self.ledger, self.element = config, ledger, element
        self.seq, self.tokens = seq, batch_size * seq
        self.learned, self.dropout = config.positions == "learned", config.dropout > 0
        self.BS, self.BSD, self.BSF, self.BSV = (
            element * self.tokens * n for n in (1, config.width, config.mlp_width, config.vocab_size)
        )
        self.wide_BSV = FLOAT * self.tokens * config.vocab_size  # the loss is computed in 32 bits, always
        self.D, self.SD = element * config.width, element * seq * config.width
        self.VD = element * config.vocab_size * config.width
        self.statistic_BS = FLOAT * self.tokens if device == "cuda" else self.BS
        self.noise_BSD = (BOOL if device == "cuda" else element) * self.tokens * config.width
        self.attention_layer = AttentionLifetimes(config, batch_size, seq, ledger, element, device)

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """From tokens to the loss."""
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
        ledger.save(tokens=INT64 * self.tokens)  # which rows the gradient goes to
        parts: tuple[str, ...] = ()
        if self.learned:
            ledger.make(token_vectors=self.BSD)
            ledger.save(positions=INT64 * self.seq)
            ledger.make(position_vectors=self.SD)
            parts = ("token_vectors", "position_vectors")
        if self.dropout:
            ledger.make(embedded=self.BSD)
            ledger.free(*parts)
            ledger.save(embedding_noise=self.noise_BSD)  # what dropout multiplies by
            parts = ("embedded",)
        ledger.save(x=self.BSD)  # the norm that comes next will want its input
        ledger.free(*parts)

    def block(self) -> None:
        """One layer: attention, then an MLP."""
        self.norm()
        self.attention()
        self.norm()
        self.mlp()

    def norm(self) -> None:
        """Its input `x` is on the list already; its result is kept by the linear layer that reads it."""
        ledger = self.ledger
        if self.config.norm == "layernorm":
            ledger.save(mean=self.statistic_BS, rstd=self.statistic_BS, normed=self.BSD)
            return
        ledger.make(square=self.BSD)
        ledger.make(mean_square=self.BS)
        ledger.free("square")
        ledger.make(mean_square_plus_eps=self.BS)
        ledger.free("mean_square")
        ledger.save(rstd=self.BS)
        ledger.free("mean_square_plus_eps")
        ledger.save(unit=self.BSD)  # x / rms, for the gradient of the scale
        ledger.save(normed=self.BSD)

    def attention(self) -> None:
        """One attention branch, added to the stream."""
        self.attention_layer.forward()
        self.ledger.make(branch=self.BSD)
        self.drop_branch(self.attention_layer.forget_variables)

    def mlp(self) -> None:
        """One MLP branch, added to the stream."""
        self.ledger.save(up=self.BSF)  # GELU's gradient depends on its input,
        self.ledger.save(bent=self.BSF)  # and its result is what the second linear layer reads
        self.ledger.make(branch=self.BSD)
        self.drop_branch()

    def drop_branch(self, then: Callable[[], None] = lambda: None) -> None:
        """Dropout at the end of a branch, and x = x + branch: the last norm has kept the old x, the next keeps this."""
        ledger = self.ledger
        if self.dropout:
            ledger.save(branch_noise=self.noise_BSD)
            ledger.make(dropped=self.BSD)
            ledger.free("branch")
        then()
        ledger.save(x=self.BSD)
        ledger.free("dropped" if self.dropout else "branch")

    def loss(self) -> None:
        """Head and cross-entropy."""
        ledger = self.ledger
        narrow = self.element < FLOAT
        ledger.make(logits=self.BSV)
        if narrow:
            ledger.make(wide_logits=self.wide_BSV)
        ledger.save(log_probabilities=self.wide_BSV)
        ledger.free("targets")
        ledger.save(targets=INT64 * self.tokens, divisor=FLOAT)  # the mean divides by the number of tokens
        ledger.make(loss=FLOAT)
        ledger.free("logits", *(["wide_logits"] if narrow else []))

    # ---- backward ----------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """The same way back."""
        self.ledger.phase = "backward"
        self.ledger.make(one=FLOAT)
        self.loss_backward()
        self.norm_backward(first=True)
        for _ in range(self.config.layers):
            self.block_backward()
        self.embed_backward()
        self.ledger.free("one")

    def block_backward(self) -> None:
        """One layer, from its end to its beginning."""
        self.mlp_backward()
        self.norm_backward()
        self.attention_backward()
        self.norm_backward()

    def loss_backward(self) -> None:
        """For a moment three blocks of tokens × vocabulary: for a small model and a large vocabulary, the peak."""
        ledger = self.ledger
        ledger.make(d_log_probabilities=self.wide_BSV)
        ledger.free("divisor")
        ledger.release("targets")
        ledger.make(d_wide_logits=self.wide_BSV)
        ledger.free("log_probabilities", "d_log_probabilities")
        if self.element < FLOAT:
            ledger.make(d_logits=self.BSV)
            ledger.free("d_wide_logits")
        if self.config.tied:
            ledger.make(d_head=self.VD)  # waits for the embedding's share
        else:
            ledger.grad(head=self.VD)
        ledger.make(d_normed=self.BSD)
        ledger.free("d_logits" if self.element < FLOAT else "d_wide_logits", "normed")

    def norm_backward(self, first: bool = False) -> None:
        """From `d_normed` to a share of `d_stream`; the final norm's share is the first."""
        ledger = self.ledger
        if self.config.norm == "layernorm":
            ledger.make(d_x=self.BSD)
            ledger.grad(norm=2 * self.D if self.config.bias else self.D)
            ledger.free("x", "mean", "rstd", "d_normed")
            self.add_to_stream(first)
            return
        ledger.make(d_scale_wide=self.BSD)
        ledger.make(d_unit=self.BSD)
        ledger.grad(norm=self.D)
        ledger.free("d_scale_wide", "d_normed", "unit")
        ledger.make(d_rstd_wide=self.BSD)
        ledger.make(d_x=self.BSD)  # x is a factor of x / rms …
        ledger.make(d_rstd=self.BS)
        ledger.free("d_unit", "d_rstd_wide")
        self.add_to_stream(first)
        ledger.free("d_rstd", "rstd")
        ledger.make(d_square=self.BSD)  # … and rms depends on x, too
        ledger.make(x_to_the_1=self.BSD)
        ledger.make(x_times_d_square=self.BSD)
        ledger.make(d_x=self.BSD)
        ledger.free("x", "d_square", "x_to_the_1", "x_times_d_square")
        self.add_to_stream(first=False)

    def add_to_stream(self, first: bool) -> None:
        """The sum is a new block, for a moment beside its two summands. The first share needs no sum."""
        ledger = self.ledger
        if first:
            ledger.free("d_x")
            ledger.make(d_stream=self.BSD)
        else:
            ledger.make(d_stream=self.BSD)
            ledger.free("d_x")
            self.forget_summand()

    def forget_summand(self) -> None:
        """The stream's gradient as it was before the sum."""
        self.ledger.free("d_stream")

    def linear_backward(self, weight: int, bias: int, frees: tuple[str, ...], **d_input: int) -> None:
        """Gradients of a linear layer's parameters (their elements given) and of its input."""
        if self.config.bias:
            self.ledger.make(**d_input)
            self.ledger.grad(weight=self.element * weight)
            self.ledger.grad(bias=self.element * bias)
        else:  # PyTorch computes them in another order then
            self.ledger.grad(weight=self.element * weight)
            self.ledger.make(**d_input)
        self.ledger.free(*frees)

    def mlp_backward(self) -> None:
        """From `d_stream` to `d_normed`."""
        width, hidden = self.config.width, self.config.mlp_width
        d_branch = self.drop_branch_backward()
        self.linear_backward(width * hidden, width, frees=(*d_branch, "bent"), d_bent=self.BSF)
        self.ledger.make(d_up=self.BSF)
        self.ledger.free("d_bent", "up")
        self.linear_backward(width * hidden, hidden, frees=("d_up", "normed"), d_normed=self.BSD)

    def attention_backward(self) -> None:
        """From `d_stream` to `d_normed`."""
        width = self.config.width
        d_branch = self.drop_branch_backward()
        reads = self.attention_layer.input_of_projection()
        self.linear_backward(width * width, width, frees=(*d_branch, *reads), d_mixed=self.BSD)
        self.attention_layer.backward()
        self.linear_backward(3 * width * width, 3 * width, frees=("d_qkv", "normed"), d_normed=self.BSD)

    def drop_branch_backward(self) -> tuple[str, ...]:
        """The block that holds the branch's gradient; none without dropout, where it is the stream's own."""
        if not self.dropout:
            return ()
        self.ledger.make(d_branch=self.BSD)
        self.ledger.free("branch_noise")
        return ("d_branch",)

    def embed_backward(self) -> None:
        """The gradients of the tables."""
        ledger = self.ledger
        d_embedded = "d_stream"
        if self.dropout:
            d_embedded = "d_embedded"
            ledger.make(d_embedded=self.BSD)
            ledger.free("embedding_noise", "d_stream")
        if self.learned:
            ledger.make(d_positions=self.SD)
            ledger.grad(position_table=self.element * self.config.context * self.config.width)
            ledger.free("d_positions", "positions")
        if self.config.tied:
            ledger.make(d_embedding=self.VD)
            ledger.free(d_embedded)
            ledger.release("tokens")
            ledger.grad(embedding=self.VD)  # the sum, a third table beside its two summands
            ledger.free("d_embedding", "d_head")
        else:
            ledger.grad(embedding=self.VD)
            ledger.free(d_embedded)
            ledger.release("tokens")

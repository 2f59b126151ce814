"""The tensors that autograd keeps of one micro-batch on one rank for the backward pass, layer by layer.

A product keeps its inputs, a norm its input, its result and a number or two for each token, an activation function its
input or its result. Tensor parallelism cuts the insides of attention and MLP, sequence parallelism also the stream
between them, context parallelism everything along the sequence; recompute keeps the inputs of segments alone.

Of our GPT the list is exact, variant by variant (on one device the tests hold it against autograd, on many against
`parallel`). Models of the zoo that are no GPT of ours are counted as they are written most simply: a matrix each for
queries, keys and values, attention by the fused kernel, the norms of `model.gpt`, rows of experts gathered once. The
kernel takes values of another width than queries (latent attention's) as they are: PyTorch's on a CPU would keep their
scores, and FlashAttention-2 wants them padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from course_lib.model.gpt import GPTConfig
from course_lib.model.zoo import ExpertModel, GroupedAttention, LatentAttention
from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, INT64
from course_lib.predict.setup import Setup

Saved = tuple[str, int, int]
"""Name, elements on this rank, bytes of each."""


def saved_tensors(setup: Setup, some: Iterable[int], layers: range) -> dict[int, list[Saved]]:
    """All that autograd keeps of `some` layers on a rank that has these `layers`, by layer.

    A stage's result is not among them. The batch's own tokens and targets are, as "batch.…", or a copy of this rank's
    part of them (sequence and context parallelism). A ring of `context` ranks holds no scores and no mask, and draws
    dropout's numbers twice, as the fused kernels of GPUs do. Experts get equally many tokens.

    Raises:
        ValueError: a bare number of parameters, relative positions, an encoder with a decoder; "selective" where no
            scores are kept, or not on a CPU; fused attention with dropout in 16 bits on a CPU.
    """
    setup.refuse_uncounted()
    gpt = setup.shape if isinstance(setup.shape, GPTConfig) else None
    if setup.recompute == "selective":
        if gpt is None or gpt.attention != "explicit" or setup.context > 1:
            raise ValueError("fused or tiled attention, or a ring, keeps no scores: nothing to recompute selectively")
        if setup.device != "cpu":
            raise ValueError(f"selective recompute on device={setup.device!r}: activations_paper has the rule")
    fused_in_16_bits = gpt is not None and gpt.attention == "fused" and setup.precision != "fp32"
    if gpt is not None and fused_in_16_bits and gpt.dropout and setup.device == "cpu" and setup.context == 1:
        raise ValueError(
            f'attention="fused" with dropout={gpt.dropout} computes in fp32 inside whatever '
            f'precision={setup.precision!r} says, and is not followed: take attention="explicit" or dropout=0'
        )
    return {layer: list(_of_layer(setup, layer, layers)) for layer in some}


def _of_layer(setup: Setup, layer: int, layers: range) -> Iterator[Saved]:
    if layer == 0:
        yield from _embedded(setup)
    elif layer == setup.shape.layers + 1:
        yield from _predicted(setup)
    elif setup.recompute == "full":
        if starts_segment(setup, layer, layers):
            yield stream_tensor(setup, f"blocks.{layer - 1}.x")
    else:
        yield from ((f"blocks.{layer - 1}.{name}", n, each) for name, n, each in _block(setup, layer))


def starts_segment(setup: Setup, layer: int, layers: range) -> bool:
    """Whether this block's input is the one that a recomputed segment keeps."""
    return (layer - max(1, layers.start)) % setup.recompute_every == 0


def stream_tensor(setup: Setup, name: str) -> Saved:
    """A number for each token and feature, between the split products."""
    return name, setup.tokens * setup.shape.width // setup.stream_parts, setup.weight_bytes


def _noise(setup: Setup, name: str, elements: int) -> Iterator[Saved]:
    """Dropout's numbers, if there is any: a factor on a CPU, a mask on a GPU."""
    if isinstance(setup.shape, GPTConfig) and setup.shape.dropout:
        yield name, elements, BOOL if setup.device == "cuda" else setup.weight_bytes


# ---- the ends ------------------------------------------------------------------------------------------------------


def _embedded(setup: Setup) -> Iterator[Saved]:
    """The rows of the tables to which gradients go."""
    copied = setup.context > 1
    yield "tokens" if copied else "batch.tokens", setup.tokens, INT64
    if isinstance(setup.shape, GPTConfig) and setup.shape.positions == "learned":
        yield "positions", setup.seq // setup.context, INT64  # one row of numbers for all sequences
    yield from _noise(setup, "embedding_dropout", stream_tensor(setup, "")[1])


def _predicted(setup: Setup) -> Iterator[Saved]:
    """The final norm, of whose result each rank has its features; log-probabilities in 32 bits; the mean's divisor."""
    own = setup.tokens // setup.stream_parts
    yield from _norm(setup, "final_norm", setup.tokens * setup.shape.width // setup.tensor)
    yield "log_probabilities", own * setup.shape.vocab_size, FLOAT  # softmax's gradient is a function of them
    yield "divisor", 1, FLOAT
    yield "targets" if own < setup.rows_per_pass * setup.seq else "batch.targets", own, INT64


# ---- a block -------------------------------------------------------------------------------------------------------


def _block(setup: Setup, layer: int) -> Iterator[Saved]:
    config, (_, stream, _) = setup.shape, stream_tensor(setup, "")
    yield from _norm(setup, "attention_norm", stream)
    if isinstance(config, GPTConfig):
        yield from _gpt_attention(setup)
    elif isinstance(config.attention, LatentAttention):
        yield from _latent_attention(setup, config.attention)
    else:
        yield from _grouped_attention(setup, config.attention)
    yield from _noise(setup, "attention.out_dropout", stream)
    yield from _norm(setup, "mlp_norm", stream)
    if isinstance(config, ExpertModel):
        yield from _experts(setup) if config.has_experts(layer) else _mlp(setup, "mlp", config.dense_hidden)
    else:
        yield from _mlp(setup, "mlp", config.mlp_width)
    yield from _noise(setup, "mlp.dropout", stream)


def _norm(setup: Setup, name: str, result: int) -> Iterator[Saved]:
    """A norm's input, its numbers of each token, and its result, which the product behind reads."""
    element, tokens = setup.weight_bytes, setup.tokens // setup.stream_parts
    yield stream_tensor(setup, f"{name}.x")
    if isinstance(setup.shape, GPTConfig) and setup.shape.norm == "layernorm":
        statistic = FLOAT if setup.device == "cuda" else element
        yield f"{name}.mean", tokens, statistic  # a GPU keeps its statistics in 32 bits
        yield f"{name}.rstd", tokens, statistic
    else:
        yield f"{name}.rstd", tokens, element
        yield stream_tensor(setup, f"{name}.unit")  # x / rms, for the gradient of the scale
    yield f"{name}.normed", result, element


def _gpt_attention(setup: Setup) -> Iterator[Saved]:
    """Our GPT's attention, in all its variants."""
    config, element, gpu, seq = setup.gpt, setup.weight_bytes, setup.device == "cuda", setup.seq // setup.context
    heads, part = config.heads // setup.tensor, setup.tokens * config.width // setup.tensor
    ring, rotary = setup.context > 1, config.positions == "rotary"
    explicit = config.attention == "explicit"
    if rotary:
        yield "attention.angles", 2 * seq * config.head_width, element  # cos and sin of every pair, for q and for k
    if ring or (not explicit and (gpu or not config.dropout)):
        yield "attention.qkv", 3 * part, element
        yield from _kernel(setup, heads, (part, part) if rotary else (), part)
        return
    views, again = views_are_enough(setup), setup.recompute == "selective"  # tensors made again need all three, too
    if views or again:
        yield "attention.qkv", 3 * part, element
    if rotary and again:
        yield "attention.q_turned", part, element
    elif not again:
        yield "attention.q", part, element
    if rotary or (not again and not (views and explicit)):
        yield "attention.k", part, element
    if not again:
        yield from _scores(setup, heads)
        if not views:
            yield "attention.v", part, element
    yield "attention.mixed", part, element


def views_are_enough(setup: Setup) -> bool:
    """Whether the products take q, k and v as views, which keep all three alive: each head is one piece of memory."""
    return setup.rows_per_pass == 1 or setup.gpt.heads == setup.tensor  # one sequence, or one head on the rank


def _scores(setup: Setup, heads: int) -> Iterator[Saved]:
    """The S × S blocks: the causal mask, softmax's result, and dropout's result."""
    scores = setup.rows_per_pass * heads * setup.seq**2
    if setup.gpt.attention == "explicit":
        yield "attention.mask", setup.seq**2, BOOL  # one for all sequences and heads
    yield "attention.weights", scores, setup.weight_bytes  # softmax's result, which its own gradient needs
    yield from _noise(setup, "attention.weights_dropout", scores)
    if setup.gpt.dropout:
        yield "attention.dropped_weights", scores, setup.weight_bytes


def _kernel(setup: Setup, heads: int, turned: tuple[int, ...], mixed: int) -> Iterator[Saved]:
    """Tensors that a fused kernel keeps besides its input: rotated copies, its result, and a number for each row."""
    element = setup.weight_bytes
    for name, elements in zip("qk", turned):
        yield f"attention.{name}_turned", elements, element
    yield "attention.mixed", mixed, element
    yield "attention.log_sum_exp", setup.tokens * heads, FLOAT
    # Rotated heads lie one behind the other, as does the result; only the GPU's kernel for fp32 sets them side by side.
    if turned and heads > 1 and (setup.context > 1 or (setup.device, element) != ("cuda", FLOAT)):
        yield "attention.mixed_flat", mixed, element


def _grouped_attention(setup: Setup, attention: GroupedAttention) -> Iterator[Saved]:
    """A matrix each for queries, keys and values: of the values, the kernel keeps the product itself."""
    heads, element = attention.heads // setup.tensor, setup.weight_bytes
    q, kv = (setup.tokens * n * attention.head_width for n in (heads, attention.kv_heads // setup.tensor))
    yield "attention.angles", 2 * (setup.seq // setup.context) * attention.head_width, element
    yield "attention.v", kv, element
    yield from _kernel(setup, heads, (q, kv), q)


def _latent_attention(setup: Setup, attention: LatentAttention) -> Iterator[Saved]:
    """Down to a narrow vector and its norm, whole on each tensor rank; up again to this rank's heads."""
    a, tokens, element = attention, setup.tokens, setup.weight_bytes
    heads = a.heads // setup.tensor
    for name, narrow, rank in (("q", a.query_rank, a.query_rank), ("kv", a.kv_rank + a.turned, a.kv_rank)):
        yield f"attention.{name}_down", tokens * narrow, element
        yield f"attention.{name}_norm.rstd", tokens, element
        yield f"attention.{name}_norm.unit", tokens * rank, element  # the norm leaves the turned key out
        yield f"attention.{name}_norm.normed", tokens * rank, element
    yield "attention.angles", 2 * (setup.seq // setup.context) * a.turned, element
    yield "attention.kv_up", tokens * heads * (a.plain + a.value), element  # the values are a view of it
    both = tokens * heads * (a.plain + a.turned)
    yield from _kernel(setup, heads, (both, both), tokens * heads * a.value)


def _mlp(setup: Setup, name: str, hidden: int, tokens: int | None = None) -> Iterator[Saved]:
    """The hidden layer before its activation function and after it; gated, also the factor and the product."""
    config = setup.shape
    gated = not isinstance(config, GPTConfig) and config.gated
    for part in ("gate", "up", "bent", "product") if gated else ("up", "bent"):
        yield f"{name}.{part}", (tokens or setup.tokens) * hidden // setup.tensor, setup.weight_bytes


def _experts(setup: Setup) -> Iterator[Saved]:
    """The router's probabilities and choices; a row for each choice, to an expert and back; shared experts."""
    config = setup.shape
    assert isinstance(config, ExpertModel)
    rows = setup.tokens * config.top_k
    yield "router.probabilities", setup.tokens * config.experts, FLOAT  # a softmax, in 32 bits whatever the model has
    yield "router.choices", rows, INT64
    yield "router.gates", rows, setup.weight_bytes
    yield "experts.tokens", rows, INT64  # whose rows these are: the way there
    yield "experts.places", rows, INT64  # and the way back
    yield "experts.rows", rows * config.width, setup.weight_bytes
    yield from _mlp(setup, "experts", config.expert_hidden, rows)
    yield "experts.results", rows * config.width, setup.weight_bytes  # a gate's gradient is a product with them
    if config.shared:
        yield from _mlp(setup, "shared_experts", config.shared * config.expert_hidden)

"""Gradient accumulation: a large batch in small pieces, with the gradient of the large batch.

Gradients add up in `.grad` until `zero_grad`, so a batch of 512 fits a device that holds 4: 128 times forward and
backward, then one step. Memory is that of the piece; time is that of the whole.

The loss of a batch is the mean over all *tokens*, and pieces of a ragged batch have different numbers of tokens. With
n_i tokens in piece i, N in all (counted before the first backward pass), and m_i the mean loss of piece i,

    loss = (sum over all tokens) / N = sum over i of (n_i / N) · m_i,

and the gradient follows the same weights. The mean of the means, with weights 1 / (number of pieces), would give a
token in a short piece more say than one in a long piece: a well-known mistake, invisible while all sequences are
equally long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_lib.model.text import Batch
from course_lib.train.gradients import clip_gradients
from course_lib.train.precision import LossScaler

IGNORE = -100
"""The target of a position that is padding: PyTorch's cross-entropy leaves it out of sum and count."""


def accumulated_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pieces: Sequence[Batch],
    *,
    max_norm: float | None = None,
    scaler: LossScaler | None = None,
) -> Float[Tensor, ""]:
    """Take one step on the micro-batches `pieces` that equals `train_step` on all of them at once.

    The two are equal up to the order of a sum. With weights in 16 bits, `.grad` has 16 bits too, and the sum is rounded
    with each piece.

    Args:
        model: called as `model(inputs, targets)`; it returns the mean loss over the targets that are not `IGNORE`.
            Where rows see each other (BatchNorm) or chance enters (dropout), the two cannot be equal.
        pieces: micro-batches on the model's device, as `micro_batches` cuts them.
        max_norm: clip the whole batch's gradient to this length, at its true size.
        scaler: scales each piece's loss; an overflow in one piece skips the whole step.

    Returns:
        The mean loss over all tokens before the step, in nats, detached.

    Raises:
        ValueError: no piece has a token to learn from.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = accumulate(model, pieces, scaler)
    if scaler is not None:
        scaler.unscale_(optimizer)  # before clipping, which needs the true length
    if max_norm is not None:
        clip_gradients(optimizer, max_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss


def accumulate(model: nn.Module, pieces: Sequence[Batch], scaler: LossScaler | None = None) -> Float[Tensor, ""]:
    """Add the gradient of the mean over all tokens to `.grad`, piece by piece; return the mean, as `accumulated_step`.

    No gradient is cleared first, and no step follows. Arguments and errors are those of `accumulated_step`.
    """
    tokens = [count_tokens(targets) for _, targets in pieces]
    if not sum(tokens):
        raise ValueError(f"{len(pieces)} pieces without a single target given; a mean needs at least one token")
    total = torch.zeros(())
    for (inputs, targets), count in zip(pieces, tokens, strict=True):
        if count == 0:
            continue  # the mean over no tokens is nan, and 0 · nan is nan too
        loss = model(inputs, targets) * (count / sum(tokens))  # n_i / N, not 1 / len(pieces)
        (loss if scaler is None else scaler.scale(loss)).backward()
        total = total.to(loss) + loss.detach()  # detached: with its graph, every piece would keep its activations
    return total


def count_tokens(targets: Int[Tensor, "batch seq"]) -> int:
    """The number of targets that are not padding."""
    return int((targets != IGNORE).sum())


def ragged_batch(sequences: Sequence[Int[Tensor, "_"]], padding: int = 0) -> Batch:
    """Join sequences into one batch: each token predicts the next, shorter rows are padded at the end.

    Args:
        sequences: token ids, two or more in each sequence.
        padding: the input token after a row's end. The model is causal, so no real position sees the padding.

    Raises:
        ValueError: a sequence is too short to hold an input and a target.
    """
    shortest = min((len(sequence) for sequence in sequences), default=0)
    if shortest < 2:
        raise ValueError(f"the shortest of {len(sequences)} sequences has {shortest} tokens; at least 2 are needed")
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = pad([sequence[:-1] for sequence in sequences], batch_first=True, padding_value=padding)
    targets = pad([sequence[1:] for sequence in sequences], batch_first=True, padding_value=IGNORE)
    return inputs, targets


def micro_batches(batch: Batch, size: int) -> list[Batch]:
    """Cut a batch into pieces of `size` rows, the last one smaller if need be, in the order of the rows.

    Columns at the end that are padding in all rows of a piece are cut off, so short sequences cost less. (Rows that are
    sorted by length gain most; the gradient is the same.)

    Raises:
        ValueError: `size` is less than 1.
    """
    if size < 1:
        raise ValueError(f"size={size} given; a micro-batch has at least 1 row")
    inputs, targets = batch
    return [_trimmed(*piece) for piece in zip(inputs.split(size), targets.split(size), strict=True)]


def _trimmed(inputs: Tensor, targets: Tensor) -> Batch:
    used = (targets != IGNORE).any(dim=0).nonzero()
    length = int(used.max()) + 1 if len(used) else 1  # a model may refuse a batch without columns
    return inputs[:, :length], targets[:, :length]

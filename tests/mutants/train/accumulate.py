"""Known-wrong versions of the accumulated step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.model.text import Batch
from course_lib.train.accumulate import accumulate, count_tokens
from course_lib.train.gradients import clip_gradients
from course_lib.train.precision import LossScaler


def finish(optimizer: Any, max_norm: float | None, scaler: LossScaler | None) -> None:
    """What the right version does after the last piece."""
    if scaler is not None:
        scaler.unscale_(optimizer)
    if max_norm is not None:
        clip_gradients(optimizer, max_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def weighted(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], weights: list[float], **rest: Any) -> Tensor:
    """An accumulated step with any weights."""
    optimizer.zero_grad()
    total = torch.zeros(())
    for piece, weight in zip(pieces, weights, strict=True):
        loss = model(*piece) * weight
        (loss if rest["scaler"] is None else rest["scaler"].scale(loss)).backward()
        total = total.to(loss) + loss.detach()
    finish(optimizer, **rest)
    return total


def mean_of_means(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], **rest: Any) -> Tensor:
    """The classic."""
    return weighted(model, optimizer, pieces, [1 / len(pieces)] * len(pieces), **rest)


def sum_of_means(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], **rest: Any) -> Tensor:
    """The missing 1/m."""
    return weighted(model, optimizer, pieces, [1.0] * len(pieces), **rest)


def counts_padding(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], **rest: Any) -> Tensor:
    """Weights by positions, padded or not."""
    sizes = [targets.numel() for _, targets in pieces]
    return weighted(model, optimizer, pieces, [size / sum(sizes) for size in sizes], **rest)


def counts_rows(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], **rest: Any) -> Tensor:
    """Weights by sequences."""
    rows = [len(targets) for _, targets in pieces]
    return weighted(model, optimizer, pieces, [row / sum(rows) for row in rows], **rest)


def keeps_the_last_piece(model: nn.Module, optimizer: Any, pieces: Sequence[Batch], **rest: Any) -> Tensor:
    """Clears the gradients before each piece."""
    total = sum(count_tokens(targets) for _, targets in pieces)
    loss = torch.zeros(())
    for piece in pieces:
        optimizer.zero_grad()
        share = count_tokens(piece[1]) / total
        part = model(*piece) * share
        (part if rest["scaler"] is None else rest["scaler"].scale(part)).backward()
        loss = loss.to(part) + part.detach()
    finish(optimizer, **rest)
    return loss


def clips_every_piece(
    model: nn.Module, optimizer: Any, pieces: Sequence[Batch], max_norm: float | None, scaler: LossScaler | None
) -> Tensor:
    """Clips what has been added up so far, after each piece."""
    optimizer.zero_grad()
    total = sum(count_tokens(targets) for _, targets in pieces)
    loss = torch.zeros(())
    for piece in pieces:
        part = model(*piece) * (count_tokens(piece[1]) / total)
        (part if scaler is None else scaler.scale(part)).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * (1 if scaler is None else scaler.get_scale()))
        loss = loss.to(part) + part.detach()
    finish(optimizer, None, scaler)
    return loss


def unscales_after_clipping(
    model: nn.Module, optimizer: Any, pieces: Sequence[Batch], max_norm: float | None, scaler: LossScaler | None
) -> Tensor:
    """The scaled gradient is always too long."""
    optimizer.zero_grad()
    loss = accumulate(model, pieces, scaler)
    if max_norm is not None:
        clip_gradients(optimizer, max_norm)
    finish(optimizer, None, scaler)
    return loss


def skips_one_piece(
    model: nn.Module, optimizer: Any, pieces: Sequence[Batch], max_norm: float | None, scaler: LossScaler | None
) -> Tensor:
    """Leaves out the piece that overflowed and steps with the rest: a biased gradient, and the scale stays."""
    optimizer.zero_grad()
    total = sum(count_tokens(targets) for _, targets in pieces)
    parameters = list(model.parameters())
    kept = [torch.zeros_like(parameter) for parameter in parameters]
    loss = torch.zeros(())
    for piece in pieces:
        part = model(*piece) * (count_tokens(piece[1]) / total)
        grads = torch.autograd.grad(part if scaler is None else scaler.scale(part), parameters)
        if all(bool(grad.isfinite().all()) for grad in grads):
            kept = [a + b for a, b in zip(kept, grads, strict=True)]
        loss = loss.to(part) + part.detach()
    for parameter, grad in zip(parameters, kept, strict=True):
        parameter.grad = grad
    finish(optimizer, max_norm, scaler)
    return loss


ALL = [
    mean_of_means,
    sum_of_means,
    counts_padding,
    counts_rows,
    keeps_the_last_piece,
    clips_every_piece,
    unscales_after_clipping,
    skips_one_piece,
]

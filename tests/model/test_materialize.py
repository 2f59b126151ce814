"""From "meta" to memory: one allocation a tensor, ties kept, and nothing left unfilled without a word."""

from __future__ import annotations

import torch
from torch import nn

from course_kit import measure
from course_lib.model.materialize import materialize
from tests.predict.refused import refused


class Tied(nn.Module):
    """An embedding, a norm with running means (buffers, one of them an integer), and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens)))


def on_meta() -> Tied:
    with torch.device("meta"):
        return Tied()


def test_it_has_the_place_and_the_dtype_and_values():
    model = on_meta()
    assert materialize(model, "cpu", torch.bfloat16) is model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert model.norm.running_var.tolist() == [1.0] * 8 and model.norm.running_var.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert model.norm.num_batches_tracked.item() == 0 and model.norm.num_batches_tracked.dtype == torch.int64  # type: ignore[union-attr]
    model(torch.arange(10)).sum().backward()
    assert model.embedding.weight.grad is not None


def test_tied_weights_stay_tied_where_to_empty_unties_them():
    ours, torchs = on_meta(), on_meta().to_empty(device="cpu")
    materialize(ours)
    assert ours.head.weight is ours.embedding.weight
    assert torchs.head.weight is not torchs.embedding.weight  # when this fails, PyTorch has learned it


def test_the_values_are_those_of_an_ordinary_start():
    """The same draws in the same order, where no weight is tied."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    with torch.device("meta"):
        late = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    torch.manual_seed(3)
    materialize(late)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), late.parameters(), strict=True))


def test_bytes_are_allocated_once():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    with measure.memory() as record:
        materialize(model, "cpu", torch.bfloat16)
    assert record.peak.total == record.now.total == 2 * 4 * 64 * 64


def test_fill_writes_everything_and_frozen_stays_frozen():
    model = on_meta()
    model.head.weight.requires_grad_(False)

    def ones(module: nn.Module) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(1)

    materialize(model, fill=ones)
    assert all(bool((parameter == 1).all()) for parameter in model.parameters())
    assert not model.embedding.weight.requires_grad and model.norm.weight.requires_grad


class Bare(nn.Module):
    """A part with a tensor that nobody fills."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.arange(4.0))


def bare_on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2, 2), Bare())


test_what_would_stay_unfilled_or_be_thrown_away_is_named = refused(
    (lambda: materialize(bare_on_meta()), r"1 \(Bare\) owns angles and has no reset_parameters"),
    (lambda: materialize(nn.Linear(2, 2)), "weight of the module .Linear. is on cpu and has values"),
)

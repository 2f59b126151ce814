"""Feature maps: against the tensors that autograd keeps for real convolutional networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from course_lib import predict
from course_lib.predict.memory import Convolution
from tests.parallel.tensor_checks import saved_by
from tests.predict.refused import refused


def network(layers: list[Convolution], channels: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for layer in layers:
        modules.append(nn.Conv2d(channels, layer.channels, layer.kernel, layer.stride, layer.padding))
        modules += [nn.BatchNorm2d(layer.channels)] if layer.norm else []
        modules.append(nn.ReLU())
        modules += [nn.MaxPool2d(layer.pool)] if layer.pool > 1 else []
        channels = layer.channels
    return nn.Sequential(*modules)


def kept(net: nn.Module, x: Tensor) -> int:
    """Bytes of all blocks that autograd saves, the images among them, parameters not counted."""
    return saved_by(net, x)[1] + x.nbytes


NETWORKS: list[list[Convolution]] = [
    [Convolution(8)],
    [Convolution(8), Convolution(16, stride=2), Convolution(4, kernel=1, padding=0)],
    [Convolution(8, norm=True), Convolution(8, kernel=5, padding=2, norm=True)],
    [Convolution(6, pool=2), Convolution(12, pool=3), Convolution(5)],
    [Convolution(6, kernel=7, stride=2, padding=3, norm=True, pool=2), Convolution(12, pool=2)],
]


@pytest.mark.parametrize("layers", NETWORKS, ids=lambda layers: f"{len(layers)} layers")
@pytest.mark.parametrize(("batch_size", "image"), [(1, (3, 24, 24)), (5, (1, 37, 26))])
def test_feature_maps_are_exact(layers, batch_size, image):
    net = network(layers, image[0])
    assert predict.convolution_activations(layers, batch_size, image) == kept(net, torch.randn(batch_size, *image))


def test_half_the_bytes_in_16_bits():
    layers = [Convolution(8), Convolution(16, stride=2)]
    net, x = network(layers, 3).bfloat16(), torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
    predicted = predict.convolution_activations(layers, 2, (3, 16, 16), bytes_per_element=2)
    assert predicted == kept(net, x) == predict.convolution_activations(layers, 2, (3, 16, 16)) // 2


test_mistakes_are_explained = refused(
    (lambda: Convolution(0), "sizes must be at least 1"),
    (lambda: predict.convolution_activations([Convolution(1)], 0, (3, 8, 8)), "batch_size=0"),
    (lambda: predict.convolution_activations([Convolution(1, kernel=9, padding=0)], 1, (3, 8, 8)), "too small"),
    (lambda: predict.convolution_activations([Convolution(1, pool=9)], 1, (3, 8, 8)), "too small an image"),
)

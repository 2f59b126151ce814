"""Who holds which weights and which tokens, where experts, data and tensor parallelism meet: as data, to be drawn.

    for rank, has in enumerate(holdings(Mesh({"data": 2, "expert": 2, "tensor": 2}), config, tokens=512)):
        print(rank, has.experts, has.hidden, has.tokens)

Fedus et al. 2021 draw it in their figure 9. Tokens are cut over "data" and "expert" together: the expert axis cuts the
experts and brings its own tokens, the data axis copies the experts. Along "tensor" the tokens are the same, and each
expert is cut.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.model.experts import ExpertConfig
from course_lib.parallel.mesh import Mesh

AXES = ("data", "expert", "tensor")
"""What a mesh of experts can have."""


class Holding(NamedTuple):
    """What one rank has.

    Attributes:
        experts: which of them.
        hidden: which of their hidden features.
        tokens: which of the batch's.
    """

    experts: range
    hidden: range
    tokens: range

    def parameters(self, config: ExpertConfig) -> int:
        """How many it holds, the router's, which is whole, among them."""
        return 2 * len(self.experts) * len(self.hidden) * config.width + config.experts * config.width


def holdings(mesh: Mesh, config: ExpertConfig, tokens: int) -> list[Holding]:
    """What each rank has, in rank order: as `parallel.experts` cuts.

    Args:
        mesh: with some of `AXES`.
        config: the layer.
        tokens: of the whole batch.

    Raises:
        ValueError: an axis that cuts nothing here, or a number that does not divide.
    """
    if unknown := set(mesh.axes) - set(AXES):
        raise ValueError(f"axis {', '.join(sorted(unknown))}: a layer of experts is cut along {', '.join(AXES)}")
    data, expert, tensor = (mesh.axes.get(axis, 1) for axis in AXES)
    for what, number, ranks in (
        ("experts", config.experts, expert),
        ("hidden features", config.hidden, tensor),
        ("tokens", tokens, data * expert),
    ):
        if number % ranks:
            raise ValueError(f"{number} {what} do not split into {ranks} equal parts: choose a number that divides")
    found = []
    for rank in range(mesh.size):
        place = dict.fromkeys(AXES, 0) | mesh.coordinates(rank)
        own_tokens = _part(tokens, data * expert, place["data"] * expert + place["expert"])
        found.append(
            Holding(
                _part(config.experts, expert, place["expert"]),
                _part(config.hidden, tensor, place["tensor"]),
                own_tokens,
            )
        )
    return found


def _part(number: int, parts: int, which: int) -> range:
    length = number // parts
    return range(which * length, (which + 1) * length)

"""Named dims: say which dim of which tensor is cut over which ranks, and the collectives follow.

    x = Layout("batch seq width")                              # whole on every rank
    up = Layout("width hidden", cut={"hidden": "tensor"})      # columns
    down = Layout("hidden width", cut={"hidden": "tensor"})    # rows
    contract(x, up)                  # Layout("batch seq hidden", cut={"hidden": "tensor"})
    contract(contract(x, up), down)  # Layout("batch seq width", partial={"tensor"}): a sum is still open
    steps(contract(contract(x, up), down), x)                  # ["all_reduce over tensor"]

Cutting a dim that survives a product cuts the result; cutting a dim that is summed over leaves each rank with a part of
the sum. That is all of Megatron's layer, and Mesh-TensorFlow's idea (Shazeer et al. 2018): the programme names dims,
the layout maps them to the mesh. No processes here, no tensors: a layout can be printed and tested alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Step(NamedTuple):
    """One collective: its name, the mesh axis, the dim that is cut or joined, and for an all-to-all the joined one."""

    operation: str
    axis: str
    dim: str = ""
    joined: str = ""

    def __str__(self) -> str:
        along = f" along {self.dim}" if self.dim else ""
        return f"{self.operation}{along}{f', joins {self.joined}' if self.joined else ''} over {self.axis}"


@dataclass(frozen=True)
class Layout:
    """Placement of one tensor on a mesh.

    Attributes:
        dims: the dims' names, in order, separated by blanks.
        cut: dim → mesh axis over whose ranks the dim is cut. Other dims are whole on every rank.
        partial: mesh axes over which a sum is still open: each rank holds a term.

    Raises:
        ValueError: a dim occurs twice, is cut but not there, or an axis is used twice.
    """

    dims: str
    cut: Mapping[str, str] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = self.dims.split()
        if len(set(names)) != len(names):
            raise ValueError(f"dims={self.dims!r}: each dim has a name of its own")
        if missing := set(self.cut) - set(names):
            raise ValueError(f"{', '.join(sorted(missing))} is cut, but the dims are {self.dims!r}")
        axes = [*self.cut.values(), *self.partial]
        if twice := {axis for axis in axes if axes.count(axis) > 1}:
            raise ValueError(
                f"mesh axis {', '.join(sorted(twice))} is used twice in {self}: its ranks can hold parts of one dim, "
                "or terms of one sum, not two things at a time"
            )

    def __str__(self) -> str:
        shown = " ".join(f"{dim}/{self.cut[dim]}" if dim in self.cut else dim for dim in self.dims.split())
        return shown + "".join(f" (a term of the sum over {axis})" for axis in sorted(self.partial))


def contract(left: Layout, right: Layout) -> Layout:
    """The layout of a product: dims that both tensors have are summed over, as in `x @ weight`; others stay, in order.

    Raises:
        ValueError: no dim is shared, a shared one is cut differently, or an open sum would be multiplied by another.
    """
    shared = [dim for dim in left.dims.split() if dim in right.dims.split()]  # the same name: summed over
    if not shared:
        raise ValueError(f"[{left}] and [{right}] share no dim to sum over")
    for dim in shared:
        if left.cut.get(dim) != right.cut.get(dim):  # ranks would multiply parts that do not belong together
            axis = left.cut.get(dim) or right.cut[dim]
            raise ValueError(
                f"{dim} is {_how(left, dim)} in [{left}] and {_how(right, dim)} in [{right}]: cut both the same way, "
                f"or bring one of them there first (all_gather along {dim} over {axis}, or cut the other one, which "
                "costs nothing)"
            )
    if left.partial and right.partial:  # (a + b)(c + d) is not ac + bd
        raise ValueError(f"both [{left}] and [{right}] are terms of sums: finish one (all_reduce) before multiplying")
    kept = [dim for dim in (left.dims + " " + right.dims).split() if dim not in shared]
    cut = {dim: axis for dim, axis in {**left.cut, **right.cut}.items() if dim in kept}
    opened = frozenset(left.cut[dim] for dim in shared if dim in left.cut)  # each rank sums over its part of the dim
    return Layout(" ".join(kept), cut, left.partial | right.partial | opened)


def steps(have: Layout, want: Layout) -> list[Step]:
    """The collectives that bring a tensor from one layout to another, one for each mesh axis that changes.

    A term of a sum becomes whole by an all-reduce and cut by a reduce-scatter; a cut tensor becomes whole by an
    all-gather, and cut along another dim by an all-to-all. A whole tensor is cut for nothing: each rank takes its part.

    Raises:
        ValueError: other dims, or a whole tensor would have to become a term of a sum.
    """
    if have.dims != want.dims:
        raise ValueError(f"[{have}] and [{want}] are not the same tensor: their dims differ")
    if opened := want.partial - have.partial:
        raise ValueError(f"[{have}] is no sum over {', '.join(sorted(opened))}: nothing turns a value into its terms")
    before, after = ({axis: dim for dim, axis in layout.cut.items()} for layout in (have, want))  # axis → dim
    collectives = []
    for axis in sorted({*before, *after, *have.partial}):
        if axis in have.partial - want.partial:
            collectives.append(Step("reduce_scatter", axis, after[axis]) if axis in after else Step("all_reduce", axis))
        elif axis in before and axis in after and before[axis] != after[axis]:
            collectives.append(Step("all_to_all", axis, after[axis], before[axis]))  # cut here, joined there
        elif axis in before and axis not in after:
            collectives.append(Step("all_gather", axis, before[axis]))
    return collectives


def _how(layout: Layout, dim: str) -> str:
    return f"cut over {layout.cut[dim]}" if dim in layout.cut else "whole"

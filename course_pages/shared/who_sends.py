"""Pictures of links: bytes from each rank to each other one, as measured, with those between two nodes marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from course_kit.accounts import TrafficAccount
from course_kit.notebook.picture import INK, MUTED, PALETTE, Picture, new_figure
from course_kit.units import Bytes

_SHADES = LinearSegmentedColormap.from_list("bytes", ["#FFFFFF", PALETTE["predicted"]])
_MOST_RANKS = 16


def matrix(accounts: Sequence[TrafficAccount], observed: bool = False) -> list[list[Bytes]]:
    """Payload bytes of send and isend as [sender][receiver]; the accounts are in rank order.

    Args:
        accounts: the accounts of all ranks.
        observed: instead, bytes that the operating system saw going from one to the other, collectives included.

    Raises:
        ValueError: no accounts, more than a picture has room for, a message to a rank without an account, or nothing
            was observed.
    """
    world_size = len(accounts)
    if not 1 <= world_size <= _MOST_RANKS:
        raise ValueError(f"{world_size} accounts; the picture has room for 1 to {_MOST_RANKS} ranks")
    if observed:
        return _observed_matrix(accounts)
    if strangers := {to for account in accounts for to in account.bytes_to} - set(range(world_size)):
        raise ValueError(f"something was sent to rank {min(strangers)}, but there are {world_size} accounts; pass all")
    return [[account.bytes_to.get(to, Bytes(0)) for to in range(world_size)] for account in accounts]


def _observed_matrix(accounts: Sequence[TrafficAccount]) -> list[list[Bytes]]:
    """Observed bytes as [sender][receiver]: a connection has two ends, each a rank's own; a port may serve several."""
    owner = {ends: rank for rank, account in enumerate(accounts) for ends in account.observed_by_connection}
    if not owner:
        raise ValueError("nothing was observed: this system does not count the bytes of a connection")
    sent = [[Bytes(0)] * len(accounts) for _ in accounts]
    for sender, account in enumerate(accounts):
        for (own, other), n_bytes in account.observed_by_connection.items():
            if n_bytes:
                sent[sender][owner[other, own]] += n_bytes
    return sent


def between_nodes(sent: list[list[Bytes]], ranks_per_node: int) -> Bytes:
    """The bytes that leave one node for another, if each `ranks_per_node` ranks in a row share a node."""
    node = [rank // ranks_per_node for rank in range(len(sent))]
    return sum((n for own, row in zip(node, sent) for other, n in zip(node, row) if own != other), Bytes(0))


def who_sends_whom(
    measured: Mapping[str, Sequence[TrafficAccount]], ranks_per_node: int | None = None, observed: bool = False, *,
    caption: str,
) -> Picture:  # fmt: skip
    """A matrix for each name → accounts of all ranks: rows send, columns receive, numbers are kB, darker is more.

    Args:
        measured: at most three, all of the same number of ranks; accounts of `check.traffic` or `measure.traffic`.
        ranks_per_node: if given, links between nodes are framed and their bytes are summed up.
        observed: draw the bytes that the operating system saw, not the payload of sends.

    Raises:
        ValueError: none or more than three matrices, or as `matrix`.
    """
    if not 1 <= len(measured) <= 3:
        raise ValueError(f"{len(measured)} matrices; the picture has room for 1 to 3")
    sent = {name: matrix(accounts, observed) for name, accounts in measured.items()}
    most = max(n_bytes for each in sent.values() for row in each for n_bytes in row) or Bytes(1)
    figure, panels = new_figure(1, max(2, len(sent)), height=2.95)
    if len(sent) == 1:
        panels[1].set_axis_off()
    told = []
    for axes, (name, each) in zip(panels, sent.items(), strict=False):
        _heat(axes, each, most)
        links, busiest = sum(n > 0 for row in each for n in row), max(sum(row, Bytes(0)) for row in each)
        title, words = name, f"{name}: {links} links carry something, the busiest rank sends {busiest:.0kB}"
        if ranks_per_node:
            _frame(axes, len(each), ranks_per_node)
            crossing = f"{between_nodes(each, ranks_per_node):.0kB}"
            title, words = f"{title}\n{crossing} between nodes", f"{words}, and {crossing} go between nodes"
        axes.set_title(title, size=9.5, color=INK)
        told.append(f"{words}.")
    return Picture(figure, caption=caption, alt=" ".join(told))


def _heat(axes: Axes, sent: list[list[Bytes]], most: Bytes) -> None:
    ranks = range(len(sent))
    axes.imshow([[float(n) for n in row] for row in sent], cmap=_SHADES, vmin=0, vmax=float(most))
    axes.grid(False)
    axes.set_xticks(ranks)
    axes.set_yticks(ranks)
    axes.set(xlabel="to rank", ylabel="from rank")
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    for sender, row in enumerate(sent):
        for receiver, n_bytes in enumerate(row):
            if n_bytes:
                color = "white" if n_bytes > 0.7 * most else INK
                text = f"{n_bytes / 1000:.3g}" if n_bytes < 999_500 else f"{n_bytes / 1000:,.0f}"
                axes.text(receiver, sender, text, ha="center", va="center", color=color, size=7 if len(text) < 4 else 6)


def _frame(axes: Axes, world_size: int, ranks_per_node: int) -> None:
    """An orange frame round each block whose sender and receiver are on different nodes."""
    starts = range(0, world_size, ranks_per_node)
    for row in starts:
        for column in starts:
            if row != column:
                corner, size = (column - 0.47, row - 0.47), ranks_per_node - 0.06
                axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=PALETTE["measured"], linewidth=1.6))

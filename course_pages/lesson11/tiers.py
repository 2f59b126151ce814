"""Tiers of memory: how full each is, and how much of its time the GPU computes while something travels between them."""

from __future__ import annotations

from collections.abc import Mapping

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, Picture, legend, new_figure, note
from course_kit.units import Bytes, Ratio


def fill_of_tiers(
    accounts: Mapping[str, MemoryAccount], capacities: Mapping[str, Bytes], efficiencies: Mapping[str, Ratio | None], *,
    caption: str, alt: str,
) -> Picture:  # fmt: skip
    """Left a bar for each tier, in shares of what it holds; right a bar for each state that travels.

    Args:
        accounts: tier → what lies there.
        capacities: tier → what it holds.
        efficiencies: state, in the order of `CATEGORIES` → the share of the time in which the GPU computes; None where
            nothing travels.
        caption: what the reader should see.
        alt: the picture in words.
    """
    figure, (left, right) = new_figure(columns=2, height=2.6)
    shares = {tier: account.total / capacities[tier] for tier, account in accounts.items()}
    for row, (tier, account) in enumerate(accounts.items()):
        start = 0.0
        for category in CATEGORIES:
            share = account[category] / capacities[tier]
            left.barh([row], [share], left=start, height=0.55, color=PALETTE[category])
            start += share
        if shares[tier] > 1:
            note(left, "too much", (0, row), (4, 14), va="bottom", weight="bold")
    left.axvline(1, color=INK, lw=1.2, ls="--")
    told = [f"{tier}\n{each.total.to('GiB'):,.1f} of {capacities[tier]:.0GiB}" for tier, each in accounts.items()]
    left.set_yticks(range(len(accounts)), told)
    left.set(xlim=(0, min(2.0, max(1.1, *shares.values()))), ylim=(len(accounts) - 0.5, -0.65))
    left.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_xlabel("of what the tier holds")
    for (state, efficiency), category in zip(efficiencies.items(), CATEGORIES):
        right.barh([state], [efficiency or 0], height=0.55, color=PALETTE[category])
        words = "stays" if efficiency is None else f"{float(efficiency):.0%}"
        note(right, words, (efficiency or 0, state), (5, 0), va="center", color=MUTED if efficiency is None else INK)
    right.set(xlim=(0, 1.2), ylim=(len(efficiencies) - 0.4, -0.6))
    right.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
    right.set_xlabel("of the time the GPU computes")
    for axes in (left, right):
        axes.grid(False, axis="y")
        axes.grid(True, axis="x", color=GRID)
    for name, category in zip(efficiencies, CATEGORIES):
        left.barh([0], [0], color=PALETTE[category], label=name)
    legend(figure, "lower center", 4)
    return Picture(figure, caption=caption, alt=alt)

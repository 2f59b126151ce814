"""ZeRO in closed form: the buffers that pass through its ranks' memory, and the fewest ranks that are enough.

The bytes and messages of its stages come from the formulas that all setups share; two belong to ZeRO alone:

    setup = Setup(1.5e9, batch_size=64, precision="mixed", data=64, zero=2)
    predict.model_states(setup)                      # 2Ψ + 14Ψ/64, by category
    predict.data_traffic(setup)["reduce_scatter"]    # bytes and messages; .seconds(link)
    predict.fewest_ranks(setup, hardware.A100_80GB.memory).data
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes
from course_lib.predict.memory import model_states
from course_lib.predict.setup import Setup, positive
from course_lib.predict.tensors import Stage, tally


def unit_buffers(setup: Setup, prefetch: bool = True, stage: Stage = 0) -> MemoryAccount:
    """The most that ZeRO-3 holds of whole weights and gradients on the way, whatever the number of ranks.

    With W the bytes of a rank's largest block, R of all that is in no block (gathered throughout) and P of the largest
    parameter, as tensor and expert ranks cut them, in the width of weights or gradients:

        parameters    R + 2W: the block at work and the next one, on its way; without `prefetch` R + W
        gradients     R + 3W + P: a block's, those of the one before being sent and received, one not yet joined

    These are the buffers of `parallel.zero3` on a CPU, for two blocks or more; a single one has fewer. Both are not
    full at one moment, and come on top of `model_states` and activations.

    Raises:
        ValueError: another stage than 3; as `rank_tensors`.
    """
    if setup.zero != 3:
        raise ValueError(f"zero={setup.zero}: units are gathered in stage 3; others hold a few buckets at a time")
    listed, units = tally(setup, stage, "parameters"), Counter[int]()
    for each, _ in listed:
        units[each.layer] += each.elements
    rest, block = units.pop(0, 0) + units.pop(setup.shape.layers + 1, 0), max(units.values(), default=0)
    largest = max(each.elements for each, _ in listed)  # autograd's gradient, before it goes into the block's
    weights, gradients = rest + (2 if prefetch else 1) * block, rest + 3 * block + largest
    return MemoryAccount(Bytes(weights * setup.weight_bytes), Bytes(gradients * setup.gradient_bytes))


def fewest_ranks(setup: Setup, memory: int, holds: Callable[[Setup], MemoryAccount] = model_states) -> Setup:
    """The setup on the fewest data ranks on which it fits: `holds(setup).total` is at most `memory`.

    Each rank keeps the sequences that it has: the batch grows with the ranks.

    Args:
        setup: everything else; of its `data`, only the sequences that fall on a rank matter.
        memory: bytes of each rank.
        holds: `model_states`, or a function of your own that does not grow with the ranks.

    Raises:
        ValueError: there is no memory, or not even 2^20 ranks are enough.
    """
    positive(memory=memory)
    own, limit = setup.batch_size // setup.data, 2**20  # sequences of all `expert` ranks; the most ranks to try

    def on(ranks: int) -> Setup:
        return replace(setup, data=ranks, batch_size=own * ranks)

    enough = 1 + bisect_left(range(1, limit + 1), True, key=lambda ranks: holds(on(ranks)).total <= memory)
    if enough > limit:
        raise ValueError(
            f"zero={setup.zero}: {limit:,} ranks are not enough: each would hold {holds(on(limit)).total} of the "
            f"{Bytes(memory)} that it has"
        )
    return on(enough)

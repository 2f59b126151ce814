"""ZeRO in closed form: what its ranks send in a step, what passes through their memory, and how few ranks are enough.

    setup = Setup(1.5e9, batch_size=64, precision="mixed", data=64, zero=2)
    predict.model_states(setup)                      # 2Ψ + 14Ψ/64, by category
    predict.data_traffic(setup)["reduce_scatter"]    # bytes and messages; .seconds(link)
    predict.fewest_ranks(setup, hardware.A100_80GB.memory).data
    predict.largest(setup, "config", hardware.A100_80GB.memory, holds=predict.model_states).value

The library that these are held against is `parallel.zero`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from course_kit.accounts import MemoryAccount
from course_kit.units import Bytes, Count
from course_lib.predict.link import Path
from course_lib.predict.memory import model_states
from course_lib.predict.per_rank import Stage, parameters_of_rank, rank_parameter_elements
from course_lib.predict.setup import Setup, positive
from course_lib.predict.traffic import Collective, all_gather, all_reduce, reduce_scatter


def data_traffic(setup: Setup, stage: Stage = 0, buckets: int = 1) -> dict[str, Collective]:
    """What one rank sends along the data axis in a step: operation → all its bytes and messages.

    With n ranks, Ψ parameters (those of this rank's place in tensor and pipeline), w bytes of a weight and g of a
    gradient, and m micro-batches (Rajbhandari et al. 2020, §7, where m = 1 and w = g):

        zero=0    all-reduce of gΨ                                                  2Ψ · (n-1)/n elements
        zero=1    reduce-scatter of gΨ, all-gather of wΨ                            2Ψ · (n-1)/n
        zero=2    reduce-scatter of gΨ for each micro-batch, all-gather of wΨ       (m+1)Ψ · (n-1)/n
        zero=3    for each micro-batch a reduce-scatter of gΨ, and an all-gather    3mΨ · (n-1)/n
                  of wΨ in the forward pass and in the backward pass

    Stages 0 and 1 add the micro-batches' gradients up first, on each rank. Zeros that fill a bucket up are not counted,
    at most n-1 elements of each; nor is the all-reduce of 4 bytes for each parameter tensor with which
    `ZeroOptimizer` learns which parameters were used.

    Args:
        setup: what is trained, and how.
        stage: of the pipeline; by default the first.
        buckets: into how many parts the weights are cut, each with messages of its own.

    Raises:
        ValueError: no bucket; context parallelism under ZeRO; as `model_states`.
    """
    positive(buckets=buckets)
    if setup.zero and setup.context > 1:
        raise ValueError(f"zero={setup.zero} with context={setup.context}: counted is ZeRO without context parallelism")
    count, _ = parameters_of_rank(setup, stage, "data_traffic")
    n, m = setup.data, int(setup.micro_batches)
    gradients, weights = count * setup.gradient_bytes, count * setup.weight_bytes
    if not setup.zero:
        return {"all_reduce": _repeated(all_reduce(gradients, n), 1, buckets)}
    passes, gathers = (m if setup.zero >= 2 else 1), (2 * m if setup.zero == 3 else 1)
    return {
        "reduce_scatter": _repeated(reduce_scatter(gradients, n), passes, buckets),
        "all_gather": _repeated(all_gather(weights, n), gathers, buckets),
    }


def unit_buffers(setup: Setup, prefetch: bool = True) -> MemoryAccount:
    """The most that ZeRO-3 holds of whole weights and gradients on the way, whatever the number of ranks.

    With W the bytes of a block, R of all that is in no block (gathered throughout) and P of the largest parameter, in
    the width of weights or gradients:

        parameters    R + 2W: the block at work and the next one, on its way; without `prefetch` R + W
        gradients     R + 3W + P: a block's, those of the one before being sent and received, one not yet joined

    That is how `parallel.zero3` does it on a CPU. It is not reached at one moment, and comes on top of `model_states`
    and activations.

    Raises:
        ValueError: another stage than 3, another model than a `GPTConfig`, or one that is split besides.
    """
    setup.refuse_parallel("unit_buffers", "data", "context", "zero")
    if setup.zero != 3:
        raise ValueError(f"zero={setup.zero}: units are gathered in stage 3; others hold a few buckets at a time")
    elements, layers = rank_parameter_elements(setup), setup.gpt.layers
    block = sum(rank_parameter_elements(setup, range(1, 2)))
    rest, largest = sum(elements) - layers * block, max(elements)
    weights, gradients = rest + (2 if prefetch else 1) * block, rest + 3 * block + largest
    return MemoryAccount(Bytes(weights * setup.weight_bytes), Bytes(gradients * setup.gradient_bytes))


def fewest_ranks(
    setup: Setup, memory: int, holds: Callable[[Setup], MemoryAccount] = model_states, limit: int = 2**20
) -> Setup:
    """The setup on as few data ranks as hold it: `holds(setup).total` is at most `memory`.

    Each rank keeps the sequences that it has: the batch grows with the ranks.

    Args:
        setup: everything else; of its `data`, only the sequences that fall on a rank matter.
        memory: bytes of each rank.
        holds: what must fit: `model_states`, or a function of your own that does not grow with the ranks.
        limit: the most ranks to try.

    Raises:
        ValueError: there is no memory, or not even `limit` ranks are enough.
    """
    positive(memory=memory, limit=limit)
    own = setup.batch_size // setup.data

    def on(ranks: int) -> Setup:
        return replace(setup, data=ranks, batch_size=own * ranks)

    def fits(ranks: int) -> bool:
        return holds(on(ranks)).total <= memory

    fails, enough = 0, 1
    while not fits(enough):
        if enough == limit:
            raise ValueError(
                f"zero={setup.zero}: {limit:,} ranks are not enough: each would hold {holds(on(limit)).total} of the "
                f"{Bytes(memory)} that it has"
            )
        fails, enough = enough, min(2 * enough, limit)
    while enough - fails > 1:
        middle = (enough + fails) // 2
        fails, enough = (fails, middle) if fits(middle) else (middle, enough)
    return on(enough)


def _repeated(each: Collective, times: int, pieces: int) -> Collective:
    """As often as `times`, in `pieces` messages where `each` has one."""
    messages, n_bytes = each.path
    path = Path(Count(times * pieces * messages), Bytes(times * n_bytes))
    return Collective(Bytes(times * each.bytes), Count(times * pieces * each.messages), path)

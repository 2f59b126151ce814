"""What a pipeline holds and sends, and which weights it uses. Runs on ranks, and raises on all of them or on none.

The tests call these with the library's `Pipeline`, and with the known-wrong ones of `tests/mutants/parallel`.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_kit import measure
from course_lib import predict
from course_lib.model.gpt import GPT, GPTConfig
from course_lib.model.text import Batch
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.schedule import ORDERS, Action, Schedule, pipedream
from course_lib.pipeline.stages import GPTStage, partition_layers
from course_lib.predict import Setup
from tests.parallel.judging import agree, off
from tests.parallel.parity import LIMIT, RULES, Pace, Side, Step, gradients_of
from tests.parallel.problems import Text

TIED = GPTConfig(layers=6, width=8, heads=2, vocab_size=11, context=6)
UNTIED = dataclasses.replace(TIED, tied=False)
SMALL = dataclasses.replace(UNTIED, layers=2)
ROWS = 2


def batch_of(step: int, n_micro_batches: int, ragged: bool = True) -> Batch:
    """A batch of all micro-batches; if ragged, they have different numbers of targets."""
    return problem(n_micro_batches, ragged).batch(step)


def problem(n_micro_batches: int, ragged: bool = True) -> Text:
    """For `parity`."""
    return Text(TIED, ROWS * n_micro_batches, ((0, 4), (1, 4)) if ragged else ())


def stages_for(schedule: Schedule, config: GPTConfig, dtype: torch.dtype = torch.float64) -> dict[int, GPTStage]:
    """This rank's stages, cut evenly."""
    layers = partition_layers([1.0] * (config.layers + 2), schedule.stages)
    return {stage: GPTStage(config, layers[stage], dtype=dtype) for stage in schedule.stages_of(dist.get_rank())}


def parameters_of(stages: dict[int, GPTStage]) -> list[nn.Parameter]:
    """The parameters of all of a rank's stages."""
    return [parameter for stage in stages.values() for parameter in stage.parameters()]


def pieces(batch: Batch) -> list[Batch]:
    """The micro-batches, uncut: a trimmed one would have another shape."""
    return list(zip(batch[0].split(ROWS), batch[1].split(ROWS)))


class Staged(Side):
    """A pipeline: `wrap(schedule, stages)`. The last stage's rank has the loss, of all micro-batches."""

    shares_the_batch = is_grouped = False
    limit = LIMIT

    def __init__(self, wrap: Any, problem: Text, optimizer: str, name: str, **sizes: int) -> None:
        assert problem.rows is not None
        self.schedule = ORDERS[name](dist.get_world_size(), problem.rows // ROWS, **sizes)
        self.stages = stages_for(self.schedule, problem.config)
        kind, settings = RULES[optimizer]
        self.optimizer, self.pipeline = kind(parameters_of(self.stages), **settings), wrap(self.schedule, self.stages)
        self.has_loss = self.schedule.stages - 1 in self.stages

    def named(self, tensors: Callable[[nn.Module], dict[str, Any]]) -> dict[str, Any]:
        """Of every stage; a tied table may be in two of them."""
        found = {number: tensors(stage) for number, stage in self.stages.items()}
        return {f"stage {number}: {name}": tensor for number in found for name, tensor in found[number].items()}

    def weights(self) -> dict[str, Tensor]:
        return self.named(lambda stage: dict(stage.named_parameters()))

    def step(self, parts: list[Batch], max_norm: float | None, pace: Pace) -> Step:
        loss = self.pipeline.forward_backward(pieces(parts[0]))
        assert (loss is not None) == self.has_loss, f"the loss is {loss}"
        gradients = self.named(gradients_of)
        pace.step()
        return Step(loss, None, gradients, self.weights())


def check_in_flight(make: Callable[..., Any], name: str, n_micro_batches: int = 6) -> None:
    """The most bytes of activations at any moment are the schedule's peak times those of a micro-batch, and room for
    the activations that the rank before may have sent: what is in flight there and not yet here."""
    rank, stages_n = dist.get_rank(), dist.get_world_size()
    schedule, batch = ORDERS[name](stages_n, n_micro_batches), batch_of(0, n_micro_batches, ragged=False)
    stages = stages_for(schedule, UNTIED, torch.float32)
    setup = Setup(UNTIED, ROWS * n_micro_batches, micro_batch=ROWS, pipeline=stages_n)
    pipeline = make(schedule, stages)
    with measure.memory(inputs=batch) as record:
        pipeline.forward_backward(pieces(batch))
    measured = int(record.timeline["activations"].max())
    layers = partition_layers([1.0] * (UNTIED.layers + 2), stages_n)[rank]
    in_flight = predict.in_flight(setup, rank, name)
    predicted = in_flight * predict.rank_activations(setup, layers)
    if rank == 0:
        predicted += batch[0].untyped_storage().nbytes()  # the embedding saves the tokens
    if rank == schedule.stages - 1:
        predicted += batch[1].untyped_storage().nbytes()  # the loss saves the targets
    if rank > 0:
        ahead = predict.in_flight(setup, rank - 1, name) - in_flight
        predicted += ahead * stages[rank].recv_buffer(batch[0][:ROWS]).nbytes
    agree(measured == predicted, f"{name}: held {measured} bytes of activations, predicted {predicted}")


def check_peaks(make: Callable[..., Any], name: str) -> None:
    """The most bytes that a rank holds, the batch aside, do not grow with the number of micro-batches, nor with steps
    that add up gradients. In GPipe each micro-batch adds its activations, and up to a message sent and one awaited."""
    # with 4, other pairs of interleaved's stages are in flight, and ZB-H2 and ZB-V end before all messages have come
    numbers = (8, 24) if name in ("interleaved", "zb-h2", "zb-v") else (4, 8, 24)
    rank, peaks = dist.get_rank(), {number: peaks_by_step(make, name, number) for number in numbers}
    where = f"{name}: held at most"
    for number, (_, second, third) in peaks.items():
        agree(second == third, f"{where} {second} bytes in step 1 and {third} in step 2, of {number} micro-batches")
    layers = partition_layers([1.0] * (SMALL.layers + 2), dist.get_world_size())[rank]
    activations = predict.rank_activations(Setup(SMALL, ROWS, pipeline=dist.get_world_size()), layers)
    least, most = (activations, activations + 2 * 4 * ROWS * 6 * SMALL.width) if name == "gpipe" else (0, 0)
    for (fewer, before), (more, after) in pairwise(peaks.items()):
        for held, now in zip(before, after):
            added = (now - held) / (more - fewer)
            agree(least <= added <= most, f"{where} {held} bytes, of {fewer} micro-batches, and {now}, of {more}")


def peaks_by_step(make: Callable[..., Any], name: str, n_micro_batches: int) -> list[int]:
    """The most bytes held beside the batch, in each of three steps without `zero_grad` between them."""
    schedule, batch = ORDERS[name](dist.get_world_size(), n_micro_batches), batch_of(0, n_micro_batches, ragged=False)
    stages, ends = stages_for(schedule, SMALL, torch.float32), [0]
    optimizer = torch.optim.SGD(parameters_of(stages), lr=0.1) if schedule.is_asynchronous else None
    pipeline = make(schedule, stages, optimizer=optimizer)
    with measure.memory(nn.ModuleList(stages.values()), inputs=batch) as record:
        for _ in range(3):
            pipeline.forward_backward(pieces(batch))
            ends.append(len(record.timeline))
    held = record.timeline.bytes.sum(axis=1) - sum(tensor.untyped_storage().nbytes() for tensor in batch)
    return [int(held[start:end].max()) for start, end in pairwise(ends)]


def check_sends(make: Callable[..., Any], name: str, n_micro_batches: int = 4) -> None:
    """A step sends each activation once to the next stage, each gradient once back, and a tied table's gradient once,
    whatever the schedule."""
    rank, n_stages = dist.get_rank(), dist.get_world_size()
    schedule = ORDERS[name](n_stages, n_micro_batches)
    pipeline = make(schedule, stages_for(schedule, TIED, torch.float32))
    with measure.traffic() as sent:
        pipeline.forward_backward(pieces(batch_of(0, n_micro_batches)))
    setup = Setup(TIED, ROWS * n_micro_batches, micro_batch=ROWS, pipeline=n_stages)
    due = predict.rank_traffic(setup, partition_layers([1.0] * (TIED.layers + 2), n_stages)[rank])["pipeline"]
    agree(dict(sent.modelled_bytes) == due.modelled_bytes, f"{name}: sent {sent}, predicted {due}")


def watch(pipeline: Pipeline, look: Callable[[Action], None]) -> None:
    """Call `look` after each action."""
    do = pipeline._do

    def watched(action: Action, received: Tensor | None) -> Tensor | None:
        made = do(action, received)
        look(action)
        return made

    pipeline._do = watched  # type: ignore[method-assign]


def check_split(make: Callable[..., Any], name: str = "zero-bubble", n_micro_batches: int = 8) -> None:
    """B makes no linear layer's weight gradient, and what it keeps for W are their inputs and their gradients. Until B,
    a rank holds all activations, and the messages that came before their turn."""
    rank, batch = dist.get_rank(), batch_of(0, n_micro_batches, ragged=False)
    schedule = ORDERS[name](dist.get_world_size(), n_micro_batches)
    stages = stages_for(schedule, UNTIED, torch.float32)
    layers = partition_layers([1.0] * (UNTIED.layers + 2), schedule.stages)
    weights = {s: [m.weight for m in stage.modules() if isinstance(m, nn.Linear)] for s, stage in stages.items()}
    pipeline = make(schedule, stages)
    kept, problems = [0], []

    def look(action: Action) -> None:
        made = [w.grad is not None for w in weights[action.stage]]
        if action.kind == "B" and action.micro_batch == 0 and any(made):
            problems.append("B made the gradients of the weights, too")
        if action.kind == "W" and not all(made):
            problems.append("W did not make the weights' gradients")
        waiting = [call for flight in pipeline._in_flight.values() for call in flight.later]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for c in waiting for t in c.args[2:]}
        kept.append(sum(storages.values()))

    watch(pipeline, look)
    with measure.memory(inputs=batch) as record:
        pipeline.forward_backward(pieces(batch))
    agree(problems, f"{name}: ")
    setup, nothing = Setup(UNTIED, ROWS, pipeline=schedule.ranks), dict.fromkeys(stages, 0)
    later = {stage: split_bytes(UNTIED, layers[stage]) for stage in stages}
    predicted = most_held(schedule.actions[rank], nothing, later)
    agree(max(kept) == predicted, f"{name}: kept {max(kept)} bytes for W, predicted {predicted}")
    until_b = {stage: int(predict.rank_activations(setup, layers[stage])) for stage in stages}
    predicted = most_held(schedule.actions[rank], until_b, nothing)
    ends = [batch[0] if stage == 0 else batch[1] for stage in stages if stage in (0, schedule.stages - 1)]
    predicted += sum(tensor.untyped_storage().nbytes() for tensor in ends)
    early = (rank > 0) * (1 if name == "zero-bubble" else 2)  # so many forwards is the rank before further ahead
    early += (rank < schedule.ranks - 1) * (name == "zb-v")  # and by one the rank behind, on the way up the V
    predicted += early * 4 * ROWS * 6 * UNTIED.width
    measured = int(record.timeline["activations"].max())
    agree(measured == predicted, f"{name}: held {measured} bytes of activations, predicted {predicted}")


def most_held(actions: Sequence[Action], until_b: dict[int, int], until_w: dict[int, int]) -> int:
    """The most bytes that a rank holds, where its stages keep so many of a micro-batch from F to B, and from B to W."""
    held = peak = 0
    for kind, stage, _ in actions:
        held += {"F": until_b[stage], "B": until_w[stage] - until_b[stage], "W": -until_w[stage]}[kind]
        peak = max(peak, held)
    return peak


def split_bytes(config: GPTConfig, layers: range) -> int:
    """What a micro-batch holds between B and W, in fp32: inputs (3 D + F) and gradients (3 D + D + F + D) of a block's
    linear layers, D and V of the head, for each token."""
    tokens, last = ROWS * 6, config.layers + 1
    block, head = 8 * config.width + 2 * config.mlp_width, config.width + config.vocab_size
    return 4 * tokens * sum(0 if layer == 0 else head if layer == last else block for layer in layers)


def check_weight_versions(make: Callable[..., Any], optimizer: str) -> None:
    """PipeDream: after each step a stage's weights are those of the paper's recurrence (§3.3), in which the gradient of
    micro-batch t is taken, forward and backward, at the weights that stage s of P had after t - (P-1-s) updates."""
    n_stages, rank, steps = dist.get_world_size(), dist.get_rank(), 8
    schedule = pipedream(n_stages, steps)
    stages, batch = stages_for(schedule, UNTIED), batch_of(0, steps, ragged=False)
    kind, settings = RULES[optimizer]
    pipeline = make(schedule, stages, optimizer=kind(parameters_of(stages), **settings))
    wanted = recurrence(n_stages, pieces(batch), optimizer)[rank]
    stashed, problems = [], []

    def look(action: Action) -> None:
        stashed.append(pipeline.stash_bytes)
        if action.kind == "U":
            for name, p in stages[rank].named_parameters():
                due = wanted[action.micro_batch + 1][name]
                problems.extend(off(f"{name} after update {action.micro_batch}", p, due, LIMIT))

    watch(pipeline, look)
    pipeline.forward_backward(pieces(batch))
    agree(problems, "")
    old_versions = n_stages - 1 - rank  # one for each micro-batch in flight: Narayanan et al. 2019, §3.3
    predicted = old_versions * sum(p.nbytes for p in stages[rank].parameters())
    agree(max(stashed) == predicted, f"stashed {max(stashed)} bytes of weights, predicted {predicted}")


def recurrence(n_stages: int, batches: Sequence[Batch], optimizer: str) -> list[list[dict[str, Tensor]]]:
    """stage → update → name → weight, in one process and without any schedule."""
    newest, delayed = GPT(UNTIED, dtype=torch.float64), GPT(UNTIED, dtype=torch.float64)
    layers = partition_layers([1.0] * (UNTIED.layers + 2), n_stages)
    names = [[name for name, _ in GPTStage(UNTIED, each, dtype=torch.float64).named_parameters()] for each in layers]
    kind, settings = RULES[optimizer]
    stepper = kind(newest.parameters(), **settings)
    history = [copy.deepcopy(newest.state_dict())]
    for t, batch in enumerate(batches):
        versions = [history[max(0, t - (n_stages - 1 - stage))] for stage in range(n_stages)]
        delayed.load_state_dict({name: versions[s][name] for s, mine in enumerate(names) for name in mine})
        delayed.zero_grad(set_to_none=True)
        delayed(*batch).backward()
        for p, q in zip(newest.parameters(), delayed.parameters()):
            p.grad = q.grad
        stepper.step()
        history.append(copy.deepcopy(newest.state_dict()))
    return [[{name: weights[name] for name in mine} for weights in history] for mine in names]

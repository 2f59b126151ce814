"""Answers to the turns of lesson 07."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_pages.lesson07 import turns
from tests.pages.answers import Answers


def by_state_dict(model):
    (state,) = box = [model.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0] or state)


def parameters_alone(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def the_mean(model):
    for tensor in model.state_dict().values():
        wide = tensor.double()
        dist.all_reduce(wide)
        tensor.copy_(wide / dist.get_world_size())


def the_least(model):
    for tensor in model.state_dict().values():
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)


def new_parameters(model):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            copy = parameter.detach().clone()
            dist.broadcast(copy, src=0)
            setattr(module, name, torch.nn.Parameter(copy))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def with_vectors(parameters):
    flat = parameters_to_vector([parameter.grad for parameter in parameters])
    dist.all_reduce(flat)
    gradients = [parameter.grad for parameter in parameters]
    vector_to_parameters(flat / dist.get_world_size(), gradients)


def one_by_one(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def the_sum(parameters):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad = part.view_as(parameter)


def still_flat(parameters):
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad.data = part


def into_float32(parameters):
    flat, end = torch.empty(sum(parameter.numel() for parameter in parameters)), 0
    for parameter in parameters:
        flat[end : (end := end + parameter.numel())] = parameter.grad.flatten()
    dist.all_reduce(flat)
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad.copy_(part.view_as(parameter) / dist.get_world_size())


def each_its_mean(parameters):
    flat = torch.stack([parameter.grad.mean() for parameter in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    for parameter, mean in zip(parameters, flat):
        parameter.grad = mean.expand_as(parameter)


def walks_on(replica, number):
    replica.missing[number] -= 1
    for place in range(len(replica.started), len(replica.buckets)):
        if replica.missing[place]:
            break
        replica.started.append(replica.start(replica.buckets[place]))


def as_soon_as_full(replica, number):
    replica.missing[number] -= 1
    if not replica.missing[number]:
        replica.started.append(replica.start(replica.buckets[number]))


def one_at_a_time(replica, number):
    replica.missing[number] -= 1
    place = len(replica.started)
    if place < len(replica.buckets) and not replica.missing[place]:
        replica.started.append(replica.start(replica.buckets[place]))


def beyond_the_last(replica, number):
    replica.missing[number] -= 1
    while not replica.missing[len(replica.started)]:
        replica.started.append(replica.start(replica.buckets[len(replica.started)]))


def keeps_the_bucket(replica, number):
    replica.missing[number] -= 1
    while len(replica.started) < len(replica.buckets) and not replica.missing[len(replica.started)]:
        bucket = replica.buckets[len(replica.started)]
        replica.start(bucket)
        replica.started.append(bucket)


def counts_for_itself(replica, number):
    replica.missing[number] -= 1
    replica.next = getattr(replica, "next", 0)
    while replica.next < len(replica.buckets) and not replica.missing[replica.next]:
        replica.started.append(replica.start(replica.buckets[replica.next]))
        replica.next += 1


def starts_a_number(replica, number):
    replica.missing[number] -= 1
    while len(replica.started) < len(replica.buckets) and not replica.missing[len(replica.started)]:
        replica.started.append(replica.start(len(replica.started)))


def never_starts(replica, number):
    replica.missing[number] -= 1
    while len(replica.started) < len(replica.buckets) and not replica.missing[len(replica.started)]:
        replica.started.append(replica.buckets[len(replica.started)])


def never_appends(replica, number):
    replica.missing[number] -= 1
    while len(replica.started) < len(replica.buckets) and not replica.missing[len(replica.started)]:
        replica.start(replica.buckets[len(replica.started)])


def two_calls(loss, rows):
    total, count = loss.detach().double() * rows, torch.tensor(rows)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def mean_of_means(loss, rows):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def sum_over_ranks(loss, rows):
    total = loss.detach() * rows
    dist.all_reduce(total)
    return total / rows


def with_its_graph(loss, rows):
    total, count = (loss * rows).detach().clone(), torch.tensor(float(rows))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count + 0 * loss


def over_its_own(loss, rows):
    total, count = loss.detach(), torch.tensor(float(rows))
    total *= rows
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


ANSWERS = {
    turns.check_start: Answers(
        right=[by_state_dict],
        wrong={
            parameters_alone: "running_mean",
            the_mean: "rank 0 should hold",
            the_least: "rank 0 should hold",
            new_parameters: "other parameters",
        },
    ),
    turns.check_glued: Answers(
        right=[with_vectors],
        wrong={
            one_by_one: "there were 3",
            the_sum: "the means should be",
            still_flat: "keep their shapes",
            each_its_mean: "the means should be",
            into_float32: "seven digits only",
        },
    ),
    turns.check_arrived: Answers(
        right=[walks_on],
        wrong={
            as_soon_as_full: "should have left",
            one_at_a_time: "'ab' should have left",
            beyond_the_last: "IndexError",
            keeps_the_bucket: "what start returned",
            counts_for_itself: "in the second step",
            starts_a_number: "but '0' has",
            never_starts: "should have left",
            never_appends: "was started before",
        },
    ),
    turns.check_logged: Answers(
        right=[two_calls],
        wrong={
            mean_of_means: "not that of all 8",
            sum_over_ranks: "not that of all 8",
            with_its_graph: "with its graph",
            over_its_own: "after the call",
        },
    ),
}

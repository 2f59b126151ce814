"""Answers to the turns of lesson 10."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.collectives import algorithms
from course_lib.collectives.operators import all_gather
from course_pages.lesson10 import turns
from tests.pages.answers import Answers

# A rank's part ------------------------------------------------------------------------------------------------------


def into_new_zeros(tensor):
    p, flat = dist.get_world_size(), tensor.reshape(-1)
    part = flat.new_zeros(-(-len(flat) // p))
    own = flat[dist.get_rank() * len(part) : (dist.get_rank() + 1) * len(part)]
    part[: len(own)] = own
    return part


def by_cat(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % p)])
    return padded.view(p, -1)[dist.get_rank()].clone()


def replaces_the_whole(tensor):
    tensor.data = by_cat(tensor)
    return tensor.data


def a_view(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    return nn.functional.pad(flat, (0, -len(flat) % p)).chunk(p)[dist.get_rank()]


def not_padded(tensor):
    return tensor.flatten().tensor_split(dist.get_world_size())[dist.get_rank()].clone()


def chunks_not_padded(tensor):
    return tensor.flatten().chunk(dist.get_world_size())[dist.get_rank()].clone()  # of 2 elements there are 2 chunks


def padded_by_p_when_even(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    return nn.functional.pad(flat, (0, p - len(flat) % p)).chunk(p)[dist.get_rank()].clone()


def padded_by_the_remainder(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    return nn.functional.pad(flat, (0, len(flat) % p)).chunk(p)[dist.get_rank()].clone()


def a_row(tensor):
    p, flat, rank = dist.get_world_size(), tensor.flatten(), dist.get_rank()
    return nn.functional.pad(flat, (0, -len(flat) % p)).view(p, -1)[rank : rank + 1].clone()


def padded_in_front(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    return nn.functional.pad(flat, (-len(flat) % p, 0)).chunk(p)[dist.get_rank()].clone()


def strided(tensor):
    p, flat = dist.get_world_size(), tensor.flatten()
    return nn.functional.pad(flat, (0, -len(flat) % p))[dist.get_rank() :: p].clone()


def always_wide(tensor):
    return by_cat(tensor).float()


# The second half of a step ------------------------------------------------------------------------------------------


def write(zero, index, whole):
    weight = zero.weights[index]
    weight.copy_(whole[: weight.numel()].view_as(weight))


def by_a_list(zero):
    zero.optimizer.step()
    for index, (weight, master) in enumerate(zip(zero.weights, zero.masters)):
        own = master.detach().to(weight.dtype)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        write(zero, index, torch.cat(parts))


def in_one_message(zero):
    zero.optimizer.step()
    own = torch.cat([master.detach().to(zero.weights[0].dtype) for master in zero.masters])
    rows = all_gather(own, 0).view(dist.get_world_size(), -1)
    for index, columns in enumerate(rows.split([len(master) for master in zero.masters], dim=1)):
        write(zero, index, columns.reshape(-1))


def by_lesson_06(zero):
    zero.optimizer.step()
    for weight, master in zip(zero.weights, zero.masters):
        whole = algorithms.all_gather(master.to(weight.dtype))
        weight.copy_(whole[: weight.numel()].view_as(weight))


def rounds_masters_before(zero):
    zero.optimizer.step()
    for index, (weight, master) in enumerate(zip(zero.weights, zero.masters)):
        master.copy_(master.to(weight.dtype))
        write(zero, index, all_gather(master.detach().to(weight.dtype), 0))


def rounds_masters_after(zero):
    by_a_list(zero)
    for weight, master in zip(zero.weights, zero.masters):
        master.copy_(turns._part(weight))


def in_new_memory(zero):
    zero.optimizer.step()
    for weight, master in zip(zero.weights, zero.masters):
        weight.data = all_gather(master.detach().to(weight.dtype), 0)[: weight.numel()].view_as(weight)


def wide_on_the_road(zero):
    zero.optimizer.step()
    for index, master in enumerate(zero.masters):
        write(zero, index, all_gather(master.detach(), 0))


def gathers_first(zero):
    for index, (weight, master) in enumerate(zip(zero.weights, zero.masters)):
        write(zero, index, all_gather(master.detach().to(weight.dtype), 0))
    zero.optimizer.step()


def takes_no_step(zero):
    for index, (weight, master) in enumerate(zip(zero.weights, zero.masters)):
        write(zero, index, all_gather(master.detach().to(weight.dtype), 0))


def by_broadcast(zero):
    zero.optimizer.step()
    for index, (weight, master) in enumerate(zip(zero.weights, zero.masters)):
        parts = [master.detach().to(weight.dtype).clone() for _ in range(dist.get_world_size())]
        for owner, part in enumerate(parts):
            dist.broadcast(part, owner)
        write(zero, index, torch.cat(parts))


# A unit that comes and goes -----------------------------------------------------------------------------------------


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        return all_gather(part, 0)

    @staticmethod
    def backward(ctx, gradient):
        return algorithms.reduce_scatter(gradient, "mean")


def cropped(whole, like):
    return whole[: like.numel()].view(like.shape)


def by_comprehension(shape, parts, x):
    named = zip(dict(shape.named_parameters()).items(), parts)
    return torch.func.functional_call(shape, {n: cropped(Gather.apply(part), like) for (n, like), part in named}, (x,))


def no_way_back(shape, parts, x):
    named = zip(dict(shape.named_parameters()).items(), parts)
    weights = {n: cropped(all_gather(part.detach(), 0), like) for (n, like), part in named}
    return torch.func.functional_call(shape, weights, x)


def cut_off_from_x(shape, parts, x):
    return by_comprehension(shape, parts, x.detach())


def not_cropped(shape, parts, x):
    named = zip(dict(shape.named_parameters()).items(), parts)
    weights = {n: Gather.apply(part).view(like.shape) for (n, like), part in named}
    return torch.func.functional_call(shape, weights, x)


# Through a buffer ---------------------------------------------------------------------------------------------------


def by_places(buffer, tensor):
    for start in range(0, len(tensor), len(buffer)):
        part = buffer[: len(tensor) - start]
        part.copy_(tensor[start : start + len(buffer)])
        dist.all_reduce(part)
        part /= dist.get_world_size()
        tensor[start : start + len(buffer)] = part


def keeps_the_old_mean(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        mean = part / dist.get_world_size()
        piece.copy_(mean)


def divides_first(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        part /= dist.get_world_size()
        dist.all_reduce(part)
        piece.copy_(part)


def empties_the_buffer(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        buffer.zero_()
        part = buffer[: len(piece)]
        part += piece
        dist.all_reduce(part)
        piece[:] = part / dist.get_world_size()
    buffer.zero_()


def finds_the_buffer_empty(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part += piece
        dist.all_reduce(part)
        piece.copy_(part / dist.get_world_size())
        part.zero_()


def beside_the_buffer(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = piece.float()
        dist.all_reduce(part)
        piece.copy_(part / dist.get_world_size())


def on_rank_0_only(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        if dist.get_rank() == 0:
            piece.copy_(part / dist.get_world_size())


def all_at_once(buffer, tensor):
    wide = tensor.float()
    dist.all_reduce(wide)
    tensor.copy_(wide / dist.get_world_size())


def in_bf16(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        dist.all_reduce(piece)
        piece /= dist.get_world_size()


def as_many_pieces_as_places(buffer, tensor):
    for piece in tensor.chunk(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        piece.copy_(part / dist.get_world_size())


def forgets_the_rest(buffer, tensor):
    for piece in tensor[: len(tensor) // len(buffer) * len(buffer)].split(len(buffer)):
        buffer.copy_(piece)
        dist.all_reduce(buffer)
        piece.copy_(buffer / dist.get_world_size())


def sends_the_whole_buffer(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        buffer[: len(piece)] = piece
        dist.all_reduce(buffer)
        piece.copy_(buffer[: len(piece)] / dist.get_world_size())


def divides_what_is_rounded(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        piece.copy_(part)
        piece /= dist.get_world_size()


def a_sum(buffer, tensor):
    for piece in tensor.split(len(buffer)):
        part = buffer[: len(piece)]
        part.copy_(piece)
        dist.all_reduce(part)
        piece.copy_(part)


ANSWERS = {
    turns.check_part: Answers(
        right=[into_new_zeros, by_cat],
        wrong={
            a_view: "its own bytes alive",
            replaces_the_whole: "should stay as it was",
            not_padded: "equally long",
            chunks_not_padded: "10 elements on 4 ranks: parts should be equally long",
            padded_by_p_when_even: "zeros are more than even lengths need",
            padded_by_the_remainder: "10 elements on 3 ranks: parts should be equally long",
            a_row: "should be flat",
            padded_in_front: "in order and then zeros",
            strided: "in order and then zeros",
            always_wide: "should be bf16",
        },
    ),
    turns.check_step: Answers(
        right=[by_a_list, in_one_message, by_lesson_06],
        wrong={
            rounds_masters_before: "a master is not what the optimizer's step makes of it",
            rounds_masters_after: "a master is not what the optimizer's step makes of it",
            in_new_memory: "stand in new memory",
            wide_on_the_road: "4 bytes for each of its own",
            gathers_first: "not everybody's new masters",
            takes_no_step: "a master is not",
            by_broadcast: "should travel by all_gather",
        },
    ),
    turns.check_unit: Answers(
        right=[by_comprehension],
        wrong={
            no_way_back: "its part of the mean gradient",
            cut_off_from_x: "x should get",
            not_cropped: "invalid for input",
        },
    ),
    turns.check_average: Answers(
        right=[by_places, divides_first, keeps_the_old_mean, empties_the_buffer],
        wrong={
            finds_the_buffer_empty: "through a buffer of 1,000 NaN",
            beside_the_buffer: "should be formed in the buffer",
            on_rank_0_only: "rounded once",
            all_at_once: "new bytes are alive at once",
            in_bf16: "rounded once",
            as_many_pieces_as_places: "must match the size of tensor",
            forgets_the_rest: "rounded once",
            sends_the_whole_buffer: "not each number once",
            divides_what_is_rounded: "on 3 ranks: the tensor should hold the fp32 mean, rounded once",
            a_sum: "rounded once",
        },
    ),
}

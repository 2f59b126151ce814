"""Answers to the turns of lesson 11."""

from __future__ import annotations

import torch

from course_pages.lesson11 import turns
from course_pages.lesson11.turns import HELD
from tests.pages.answers import Answers

FLOW = {
    ("weights", "forward"): 2, ("weights", "backward"): 2, ("backward", "gradients"): 2, ("gradients", "update"): 2,
    ("states", "update"): 12, ("update", "states"): 12, ("update", "weights"): 2,
}  # fmt: skip


def sets(away):
    return [
        sum(HELD[name] for name in set(HELD) - away),
        sum(n for pair, n in FLOW.items() if len(away & set(pair)) == 1),
    ]


def either_end(away):
    return sets(away)[0], sum(n for (a, b), n in FLOW.items() if a in away or b in away)


def four_cases(away):
    known = {(): (16, 0), ("gradients",): (14, 4), ("states",): (4, 24), ("weights",): (14, 6)}
    return known.get(tuple(sorted(away)), (2, 4))


def held_of_all(away):
    return 16, sets(away)[1]


def adds_to_zeros(weight, master, out):
    master.grad, gradient = torch.zeros_like(master), weight.grad
    weight.grad = None
    return out.send(gradient, master.grad, add=True)


def wide_on_the_road(weight, master, out):
    gradient, weight.grad = weight.grad.float(), None
    master.grad = torch.empty_like(master)
    return out.send(gradient, master.grad)


def waits(weight, master, out):
    arrives = adds_to_zeros(weight, master, out)
    arrives.result()
    return arrives


def holds_on(weight, master, out):
    master.grad = torch.empty_like(master)
    return out.send(weight.grad, master.grad)


def narrow_over_there(weight, master, out):
    gradient, weight.grad = weight.grad, None
    master.grad_dtype = None
    master.grad = torch.empty_like(gradient)
    return out.send(gradient, master.grad)


def copies_by_itself(weight, master, out):
    gradient, weight.grad = weight.grad, None
    master.grad = gradient.float()
    return out.send(gradient, torch.empty_like(master))


def casts_here_and_sends_for_show(weight, master, out):
    master.grad = weight.grad.float()
    arrives = out.send(weight.grad, master.grad)
    weight.grad = None
    return arrives


def clears_before_it_left(weight, master, out):
    arrives = copies_into(master, weight.grad, out)
    weight.grad.zero_()
    weight.grad = None
    return arrives


def copies_into(master, gradient, out):
    master.grad = torch.empty_like(master)
    return out.send(gradient, master.grad)


def onto_the_master(weight, master, out):
    gradient, weight.grad = weight.grad, None
    master.grad = master.data
    return out.send(gradient, master.grad)


def into_the_step_before(weight, master, out):
    gradient, weight.grad = weight.grad, None
    return out.send(gradient, master.grad)


def makes_only_the_first(weight, master, out):
    gradient, weight.grad = weight.grad, None
    if master.grad is None:
        master.grad = torch.empty_like(master)
    return out.send(gradient, master.grad)


def in_the_other_16_bits(weight, master, out):
    gradient, weight.grad = weight.grad.half(), None
    return copies_into(master, gradient, out)


def waits_for_the_last(o):
    o.coming[-1].result()
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        last = o.back.send(master.detach().to(weight.dtype), weight.detach())
    last.result()


def waits_for_all_but_the_last(o):
    [arrives.result() for arrives in o.coming[:-1]]
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        o.back.send(master.detach().to(weight.dtype), weight.detach()).result()


def one_after_the_other(o):
    [arrives.result() for arrives in o.coming]
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        o.back.send(master.detach().bfloat16(), weight.detach()).result()


def does_not_wait_at_the_end(o):
    [arrives.result() for arrives in o.coming]
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        o.back.send(master.detach().to(weight.dtype), weight.detach())


def does_not_wait_for_gradients(o):
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        last = o.back.send(master.detach().to(weight.dtype), weight.detach())
    last.result()


def wide_on_the_way_home(o):
    [arrives.result() for arrives in o.coming]
    o.adamw.step()
    for copy in [o.back.send(master.detach(), weight.detach()) for weight, master in zip(o.weights, o.masters)]:
        copy.result()


def copies_home_itself(o):
    [arrives.result() for arrives in o.coming]
    for weight, master in zip(o.weights, o.masters):
        weight.copy_(master)
    o.adamw.step()


def copies_past_the_link_and_sends_for_show(o):
    for arrives in o.coming:
        arrives.result()
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        weight.copy_(master)
        o.back.send(weight.detach(), weight.detach()).result()


def sends_into_a_dummy(o):
    [arrives.result() for arrives in o.coming]
    o.adamw.step()
    for weight, master in zip(o.weights, o.masters):
        new = master.to(weight.dtype)
        weight.copy_(new)
        o.back.send(new, torch.empty_like(new)).result()


def through_a_function(fetch, count, micro_batches):
    def through(unit, parts):
        return [unit(x) for x in parts]

    for number in range(count):
        micro_batches = through(fetch(number), micro_batches)
    return tuple(micro_batches)


def all_micro_batches_in_one(fetch, count, micro_batches):
    x = torch.cat(micro_batches)
    for number in range(count):
        x = fetch(number)(x)
    return list(x.split([len(each) for each in micro_batches]))


def takes_from_the_list(fetch, count, micro_batches):
    for number in range(count):
        unit, done = fetch(number), []
        while micro_batches:
            done.append(unit(micro_batches.pop(0)))
        del unit
        micro_batches = done
    return micro_batches


def a_batch_at_a_time(fetch, count, micro_batches):
    done = []
    for x in micro_batches:
        for number in range(count):
            x = fetch(number)(x)
        done.append(x)
    return done


def all_at_once(fetch, count, micro_batches):
    units = [fetch(number) for number in range(count)]
    for unit in units:
        micro_batches = [unit(x) for x in micro_batches]
    return micro_batches


def all_weights_without_their_units(fetch, count, micro_batches):
    for weight in [fetch(number).weight for number in range(count)]:
        micro_batches = [x @ weight.T for x in micro_batches]
    return micro_batches


def a_name_holds_on(fetch, count, micro_batches):
    for number in range(count):
        unit = fetch(number)
        micro_batches = [unit(x) for x in micro_batches]
    return micro_batches


def from_the_top(fetch, count, micro_batches):
    for number in reversed(range(count)):
        micro_batches = through_a_function(lambda _, n=number: fetch(n), 1, micro_batches)
    return micro_batches


ANSWERS = {
    turns.check_cost: Answers(
        right=[sets], wrong={either_end: "bytes cross", four_cases: "with update away", held_of_all: "held"}
    ),
    turns.check_leave: Answers(
        right=[adds_to_zeros],
        wrong={
            wide_on_the_road: "bytes",
            in_the_other_16_bits: "other values",
            waits: "the copy is over",
            holds_on: "let go",
            narrow_over_there: "bfloat16",
            copies_by_itself: "elsewhere",
            casts_here_and_sends_for_show: "before it was sent",
            clears_before_it_left: "other values",
            onto_the_master: "the master itself",
            into_the_step_before: "a new tensor",
            makes_only_the_first: "a new tensor",
        },
    ),
    turns.check_update: Answers(
        right=[waits_for_the_last, one_after_the_other],
        wrong={
            does_not_wait_at_the_end: "still on their way",
            does_not_wait_for_gradients: "those of one device",
            waits_for_all_but_the_last: "after step 0 the weights should be those of one device",
            wide_on_the_way_home: "bytes home",
            copies_home_itself: "those of one device",
            sends_into_a_dummy: "come home by another way than o.back",
            copies_past_the_link_and_sends_for_show: "before they were sent",
        },
    ),
    turns.check_layer_by_layer: Answers(
        right=[through_a_function, all_micro_batches_in_one],
        wrong={
            takes_from_the_list: "as it was, but was changed",
            a_batch_at_a_time: "fetched",
            all_at_once: "a name holds on",
            all_weights_without_their_units: "a name holds on",
            a_name_holds_on: "a name holds on",
            from_the_top: "the whole tower",
        },
    ),
}

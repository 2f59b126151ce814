"""Right and wrong answers to lesson 04's turns."""

from __future__ import annotations

import torch

from course_pages.lesson04 import turns
from tests.pages.answers import Answers


@torch.no_grad()
def copies_all_at_once(adam, copies, parameters):
    for number, parameter in enumerate(parameters):
        copies[number].grad = parameter.grad.to(torch.float32)
    adam.step()
    for parameter, each in zip(parameters, copies):
        parameter.data = each.half()


def never_told_the_model(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.grad = parameter.grad.float()
    adam.step()


def told_before_the_step(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.grad = parameter.grad.float()
        parameter.data.copy_(each)
    adam.step()


def from_the_model(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.data.copy_(parameter.data)
        each.grad = parameter.grad.float()
    adam.step()
    for each, parameter in zip(copies, parameters):
        parameter.data.copy_(each)


def gradients_in_fp16(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.grad = parameter.grad
    adam.step()


def forgot_the_gradients(adam, copies, parameters):
    adam.step()
    for each, parameter in zip(copies, parameters):
        parameter.data.copy_(each)


def the_model_becomes_the_copies(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.grad = parameter.grad.float()
    adam.step()
    for each, parameter in zip(copies, parameters):
        parameter.data = each


def tells_the_list(adam, copies, parameters):
    for each, parameter in zip(copies, parameters):
        each.grad = parameter.grad.float()
    adam.step()
    for number, each in enumerate(copies):
        parameters[number] = each.half()


def softmax_in_place(scores):
    scores -= scores.max(dim=-1, keepdim=True).values
    scores.exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores


def as_the_formula(scores):
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def called_it(scores):
    return scores.softmax(0)


def called_it_by_the_function(scores):
    return torch.nn.functional.softmax(scores, dim=-1)


def called_it_by_another_name(scores):
    return torch.special.softmax(scores, -1)


def in_fp32(scores):
    powers = scores.float().exp()
    return (powers / powers.sum(-1, keepdim=True)).to(scores.dtype)


def one_maximum_for_all(scores):
    powers = (scores - scores.max()).exp()
    return powers / powers.sum(-1, keepdim=True)


def the_first_of_each_row(scores):
    powers = (scores - scores[:, :1]).exp()
    return powers / powers.sum(-1, keepdim=True)


def over_the_columns(scores):
    powers = (scores - scores.amax(0)).exp()
    return powers / powers.sum(0)


def scale_by_the_remainder(scaler, finite):
    if not finite:
        scaler.scale, scaler.good = scaler.scale * 0.5, 0
        return
    scaler.good = (scaler.good + 1) % scaler.growth_interval
    scaler.scale *= 2 if scaler.good == 0 else 1


def doubles_only_once(scaler, finite):
    scaler.good = scaler.good + 1 if finite else 0
    if not finite:
        scaler.scale /= 2
    elif scaler.good == scaler.growth_interval:
        scaler.scale *= 2


def doubles_ever_after(scaler, finite):
    scaler.good = scaler.good + 1 if finite else 0
    scaler.scale *= 0.5 if not finite else 2 if scaler.good >= scaler.growth_interval else 1


def an_inf_is_no_end(scaler, finite):
    if not finite:
        scaler.scale /= 2
        return
    scaler.good += 1
    if scaler.good == scaler.growth_interval:
        scaler.scale, scaler.good = 2 * scaler.scale, 0


def never_down(scaler, finite):
    scaler.good = scaler.good + 1 if finite else 0
    if scaler.good == scaler.growth_interval:
        scaler.scale, scaler.good = 2 * scaler.scale, 0


def never_below_one(scaler, finite):
    scale_by_the_remainder(scaler, finite)
    scaler.scale = max(1.0, scaler.scale)


def halves_without_a_rest(scaler, finite):
    if finite:
        scale_by_the_remainder(scaler, finite)
    else:
        scaler.scale, scaler.good = scaler.scale // 2, 0


def delayed_by_sorting(history, largest):
    known = sorted(history[-4:])
    return largest / known[-1] if known and known[-1] else 1


def the_last_alone(history, largest):
    return largest / history[-1]


def all_that_ever_was(history, largest):
    return largest / max(history) if any(history) else 1.0


def the_first_four(history, largest):
    return largest / max(history[:4])


def upside_down(history, largest):
    return max(history[-4:]) / largest


def no_care_for_zeros(history, largest):
    return largest / max(history[-4:], default=1.0)


def known_if_ever(history, largest):
    return largest / max(history[-4:]) if any(history) else 1.0


def known_if_the_last_is(history, largest):
    return largest / max(history[-4:]) if history and history[-1] else 1.0


def zeros_are_passed_over(history, largest):
    known = [each for each in history if each][-4:]
    return largest / max(known) if known else 1.0


ANSWERS = {
    turns.check_copies: Answers(
        right=[copies_all_at_once],
        wrong={
            never_told_the_model: "Adam: the model should hold the copies, rounded",
            told_before_the_step: "Adam: the model should hold the copies, rounded",
            from_the_model: "after three steps: the copies should be where the optimizer alone takes them",
            gradients_in_fp16: "assign",
            the_model_becomes_the_copies: "the model should stay in fp16",
            tells_the_list: "Adam: the model should hold the copies, rounded",
            forgot_the_gradients: "the fp32 copies should move, and 0% of their numbers did",
        },
    ),
    turns.check_softmax: Answers(
        right=[softmax_in_place],
        wrong={
            as_the_formula: "in float16 became [nan",
            called_it: "softmax was called",
            called_it_by_the_function: "softmax was called",
            called_it_by_another_name: "special_softmax was called",
            in_fp32: "all of it should stay in float16, and float16 and float32 came up",
            one_maximum_for_all: "row 1 of the scores [[1000.0",
            over_the_columns: "row 0 of the scores [[12.0",
            the_first_of_each_row: "row 0 of the scores [[0.0, 30.0",
        },
    ),
    turns.check_scale: Answers(
        right=[scale_by_the_remainder],
        wrong={
            doubles_only_once: "after good, good, good, good the scale goes from 16 to 16",
            doubles_ever_after: "after good, good, good the scale goes from 16 to 32",
            an_inf_is_no_end: "after good, good, good, inf, good the scale goes from 8 to 16",
            never_down: "after good, good, good, inf the scale goes from 16 to 16",
            never_below_one: "inf the scale goes from 1 to 1",
            halves_without_a_rest: "inf the scale goes from 1 to 0",
        },
    ),
    turns.check_delayed: Answers(
        right=[delayed_by_sorting],
        wrong={
            the_last_alone: "amax so far 8, 4, 2, 1, 0.5",
            all_that_ever_was: "amax so far 8, 4, 2, 1, 0.5",
            the_first_four: "takes the largest of the last four steps to",
            upside_down: "and the format ends at",
            no_care_for_zeros: "ZeroDivisionError",
            known_if_ever: "ZeroDivisionError",
            known_if_the_last_is: "amax so far 9, 1, 3, 1, 0",
            zeros_are_passed_over: "amax so far 9, 1, 3, 1, 0",
        },
    ),
}

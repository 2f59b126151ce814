"""The grammar's entropy: by hand, by enumerating every story, and by an exact parser."""

import math
import re
from itertools import product

import pytest

from course_lib.model.seeds import integers
from course_lib.model.text import STORIES, Grammar, Rules
from tests.predict.refused import refused

TOY = Grammar(
    {"story": [(1, "{NAME} saw a {thing}. ")], "NAME": [(1, "Ada"), (1, "Bo")], "thing": [(3, "cat"), (1, "cow")]}
)


def surprise(text: str, rules: Rules = STORIES) -> float:
    """-ln p of one story, by *parsing* it: an exact probability model that shares nothing with the generator's code.

    Asserts that there is exactly one way to read the story, which is what makes the entropy exact.
    """

    def read(symbol: str, at: int, known: dict) -> list[tuple[int, float, dict]]:
        if symbol in known:
            return [(at + len(known[symbol]), 0.0, known)] if text.startswith(known[symbol], at) else []
        total = sum(weight for weight, _ in rules[symbol])
        found = []
        for weight, option in rules[symbol]:
            states = [(at, -math.log(weight / total), known)]
            for i, part in enumerate(re.split(r"\{(\w+)\}", option)):
                if i % 2:
                    states = [(e, s + c, k) for b, s, k0 in states for e, c, k in read(part, b, k0)]
                else:
                    states = [(b + len(part), s, k) for b, s, k in states if text.startswith(part, b)]
            for end, cost, k in states:
                found.append((end, cost, k | {symbol: text[at:end]} if symbol.isupper() else k))
        return found

    readings = [cost for end, cost, _ in read("story", 0, {}) if end == len(text)]
    assert len(readings) == 1, f"{len(readings)} ways to read {text!r}"
    return readings[0]


def sample(count: int) -> list[str]:
    grammar, draws = Grammar(STORIES), integers(5)
    return [grammar.story(draws) for _ in range(count)]


def test_toy_by_hand() -> None:
    assert TOY.entropy == pytest.approx(math.log(2) + 0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert TOY.expected_bytes() == 2.5 + len(" saw a . ") + 3
    assert TOY.longest() == len("Ada saw a cat. ")


def test_remembered_symbols_cost_once_and_repeat() -> None:
    once = Grammar({"story": [(1, "{A}{A}{A}.")], "A": [(1, "x"), (1, "y")]})
    thrice = Grammar({"story": [(1, "{a}{a}{a}.")], "a": [(1, "x"), (1, "y")]})
    assert once.entropy == pytest.approx(math.log(2))
    assert thrice.entropy == pytest.approx(3 * math.log(2))
    assert {once.story(integers(i)) for i in range(50)} == {"xxx.", "yyy."}
    assert len({thrice.story(integers(i)) for i in range(200)}) == 8


def test_entropy_is_that_of_all_stories_enumerated() -> None:
    """A small grammar with everything that STORIES uses, against the definition: -sum of p ln p over its texts."""
    rules = {
        "story": [(1, "{A} {b}. {end}\n")], "A": [(3, "{b}!"), (1, "dog")], "b": [(2, "cat"), (1, "cow")],
        "end": [(1, "{A}?"), (2, "so {b} {b}")],
    }  # fmt: skip
    probability: dict[str, float] = {}
    b = {"cat": 2 / 3, "cow": 1 / 3}
    a = {"cat!": 3 / 4 * 2 / 3, "cow!": 3 / 4 / 3, "dog": 1 / 4}
    for (x, px), (y, py) in product(a.items(), b.items()):
        probability[f"{x} {y}. {x}?\n"] = px * py / 3
        for (u, pu), (v, pv) in product(b.items(), b.items()):
            probability[f"{x} {y}. so {u} {v}\n"] = px * py * pu * pv * 2 / 3
    grammar = Grammar(rules)
    assert sum(probability.values()) == pytest.approx(1)
    assert grammar.entropy == pytest.approx(-sum(p * math.log(p) for p in probability.values()))
    assert grammar.expected_bytes() == pytest.approx(sum(p * len(text) for text, p in probability.items()))
    assert grammar.longest() == max(map(len, probability))
    assert {grammar.story(integers(i)) for i in range(3000)} == set(probability)
    assert all(surprise(text, rules) == pytest.approx(-math.log(p)) for text, p in probability.items())


def test_entropy_of_the_stories_agrees_with_an_exact_parser() -> None:
    texts = sample(3000)
    costs = [surprise(text) for text in texts]
    mean, grammar = sum(costs) / len(costs), Grammar(STORIES)
    spread = (sum((cost - mean) ** 2 for cost in costs) / len(costs)) ** 0.5
    assert abs(mean - grammar.entropy) < 4 * spread / len(costs) ** 0.5
    rate = sum(costs) / sum(map(len, texts))
    assert rate == pytest.approx(grammar.entropy / grammar.expected_bytes(), rel=0.01)


def test_longest_is_never_exceeded() -> None:
    assert max(map(len, sample(3000))) <= Grammar(STORIES).longest()


@pytest.mark.parametrize("symbol", sorted(set(STORIES) - {"story"}))
def test_no_alternative_begins_another(symbol: str) -> None:
    """Prefix-free alternatives can be read from left to right without doubt, so no two stories share a text."""
    options = [option.split("{")[0] or option for _, option in STORIES[symbol]]
    assert not [(a, b) for a, b in product(options, options) if a != b and b.startswith(a)]
    assert len(set(options)) == len(options)


def test_the_first_story_never_changes() -> None:
    """Stored outputs depend on it. It holds for every version of Python."""
    assert Grammar(STORIES).story(integers(0)) == (
        "Jan the mouse lost a kind apple on the bridge. Jan took the apple and sang.\n"
    )


test_rules_that_make_no_story_are_refused = refused(
    *(
        (lambda rules=rules: Grammar(rules), words)  # type: ignore[arg-type]
        for rules, words in (
            ({"story": [(1, "{who} came")]}, "no rule for who"),
            ({"start": [(1, "x")]}, "no rule for story"),
            ({"story": [(0, "x")]}, "positive integers"),
            ({"story": [(0.5, "x")]}, "positive integers"),
            ({"story": []}, "needs alternatives"),
            ({"story": [(1, "{A}"), (1, "nobody")], "A": [(1, "x"), (1, "y")]}, "do not mention A"),
        )
    )
)

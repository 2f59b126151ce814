"""What every explorer promises its readers, on one page with all of them: names, room, keys, Python and back.

A new explorer is tested here without another line. What only one of them does has a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.shown import SET, Shown, alone_on_the_page
from tests.pages.explorers import EXPLORERS, places

pytestmark = pytest.mark.browser

MOVED = [name for name, each in EXPLORERS.items() if each.controls()]
WIDTHS = (340, 430, 600, 760, 1200)
OWN_WORDS = {("RingExplorer", "step")}
"""Sliders whose words come from the script."""
MESSAGES = {("RingExplorer", "world_size"): 2}
"""Moves that send Python more than one message: other ranks, and back to the start."""
NAMES = {
    "BitExplorer": [("group", "fp8 e5m2: 5 exponent bits, 2 fraction bits")],
    "MemoryBarExplorer": [("img", "parameters 2.9 GiB, optimizer 17.4 GiB, activations 39.1 GiB")],
    "FilmExplorer": [("img", "Peak for each K; the lowest is 8")],
    "ScaleExplorer": [("img", "Histogram by size. Scale 2⁰"), ("img", "Fates at each scale")],
    "BucketExplorer": [("img", "Time to the end for each bucket size; lowest: 135 ms")],
    "PipelineExplorer": [("group", "rank 3")],
    "TiersExplorer": [
        ("img", "GPU memory: weights 12.4 GiB, gradients 12.4 GiB, checkpoints 2.0 GiB, passing through 4.6 GiB"),
        ("img", "the processor: 1.04 s"),
    ],
    "CubeExplorer": [
        ("img", "16 ranks in 4 machines; rank 5 meets along tensor 4, 6, 7; along data 1; along pipeline 13"),
    ],
    "ExpertsExplorer": [("img", "expert 1: 18 tokens in the queue, 8 dropped")],
}
"""Of drawings at their first place: what a screen reader says, with its numbers."""
NAMELESS = """(root) => [...root.querySelectorAll('svg, [role=img], [role=group]')].filter(
    (node) => !node.ariaLabel && !node.closest('[aria-hidden=true]')).map((node) => node.outerHTML.slice(0, 120))"""
TIMES = """(root) => {
    const sliders = [...root.querySelectorAll('input[type=range]')];
    return Array.from({ length: 100 }, (_, i) => {
        const slider = sliders[i % sliders.length], { min, max } = slider;
        slider.value = +min + (i * 7) % (max - min + 1);
        const start = performance.now();
        slider.dispatchEvent(new Event('input'));
        return performance.now() - start;
    }).sort((a, b) => a - b);
}"""
CHANGED = """(root, others) => {
    const own = [...Object.keys(shown)].indexOf(root.id);
    const sheets = [...document.styleSheets];
    const look = () => [root, ...root.querySelectorAll('*')].flatMap((node) => [null, '::before'].map((part) => {
        const style = getComputedStyle(node, part);
        const values = [...style].map((name) => style.getPropertyValue(name));
        return [`${node.getAttribute('class')} ${part ?? ''}`, values.join()];
    }));
    sheets.forEach((sheet, i) => { sheet.disabled = i !== own; });
    const alone = look();
    document.head.append(Object.assign(document.createElement('style'), { textContent: others }));
    const changed = look().filter(([, style], i) => style !== alone[i][1]).map(([name]) => name);
    document.head.lastElementChild.remove();
    sheets.forEach((sheet) => { sheet.disabled = false; });
    return changed;
}"""
"""What looks otherwise beside the sheets of all others than with the explorer's own sheet alone."""
TOO_WIDE = """([root, places, onPurpose]) => places.flatMap((place) => {
    shown[root.id].reset();
    Object.entries(place).forEach(([control, value]) => shown[root.id].set(control, value));
    const cut = [...root.querySelectorAll('.ex-body *')].filter((node) => !node.matches(onPurpose)).filter(
        (node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline');
    const sideways = document.documentElement.scrollWidth - innerWidth;
    return cut.length || sideways > 0 ? [{ sideways, cut: cut.map((node) => node.className), place }] : [];
})"""
"""Where the page scrolls sideways, or something is wider than its room."""
FAINT = """([root, dark, least]) => {
    const page = document.body.style, before = page.cssText;
    [page.background, page.color] = dark ? ['#111', '#eee'] : ['#fff', '#222'];
    const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d');
    const luminance = (layers) => {
        for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const inkOf = (node) => getComputedStyle(node).webkitTextFillColor;
    const contrast = (node) => {
        const behind = [], color = inkOf(node);
        for (let at = node; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
        const [a, b] = [luminance(behind), luminance([...behind, color])].sort((a, b) => a - b);
        return (b + 0.05) / (a + 0.05);
    };
    const says = (node) => [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    const found = [...root.querySelectorAll('*:not(svg *, option, :disabled, style, script, .mm-arrow)')]
        .filter((node) => says(node) && node.checkVisibility() && inkOf(node) !== 'rgba(0, 0, 0, 0)')
        .filter((node) => contrast(node) < least)
        .map((node) => [contrast(node).toFixed(1), node.className, node.textContent.slice(0, 40)]);
    page.cssText = before;
    return found;
}"""
"""Words too faint before what lies behind them; not a drawing's (an arrow is one), and none that are clear."""
ON_PURPOSE = "svg, svg *, option, .ax-line, .ex-longer, .bx-bit, .px-bar, .xp-cell"
"""A line that stands out, a bar that fades out, and cells whose words a narrow page cuts."""


def one_of(page: Page, errors: list[str], name: str) -> Iterator[Shown]:
    """That explorer; the test fails if a JavaScript exception goes uncaught."""
    errors.clear()
    yield alone_on_the_page(page, name)
    assert not errors


@pytest.fixture(params=EXPLORERS)
def shown(everybody: tuple[Page, list[str]], request: pytest.FixtureRequest) -> Iterator[Shown]:
    """Each of them."""
    yield from one_of(*everybody, request.param)


@pytest.fixture(params=MOVED)
def moved(everybody: tuple[Page, list[str]], request: pytest.FixtureRequest) -> Iterator[Shown]:
    """One that has controls."""
    yield from one_of(*everybody, request.param)


def test_a_number_alone_has_no_controls_and_a_file_of_its_own() -> None:
    assert set(EXPLORERS) - set(MOVED) == {"BitExplorer"}


def test_every_control_and_drawing_has_a_name(shown: Shown, unnamed: Callable[[Locator], list[str]]) -> None:
    assert not unnamed(shown.root)
    assert shown.root.evaluate(NAMELESS) == []
    for role, words in NAMES.get(shown.name, []):
        expect(shown.root.get_by_role(role, name=words), words).to_have_count(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dark", [False, True])
def test_words_have_contrast(shown: Shown, dark: bool) -> None:
    """At least 4.5 to 1, by day and by night, at first and further on (WCAG 1.4.3)."""
    for place in ({}, *places(shown.name, 3)):
        shown.page.evaluate(SET, [shown.name, place, True])
        assert shown.page.evaluate(FAINT, [shown.root.element_handle(), dark, 4.5]) == [], place


def test_nothing_sticks_out(shown: Shown) -> None:
    """At first, with all controls at their first, last and longest values, and at places drawn at random."""
    told = shown.controls.items()
    ends = [{name: each["values"][place] for name, each in told} for place in (0, -1)]
    longest = {name: max(zip(each["words"], each["values"]), key=lambda pair: len(pair[0]))[1] for name, each in told}
    at = [{}, *ends, longest, *places(shown.name, 3)]
    for width in WIDTHS:
        shown.page.set_viewport_size({"width": width, "height": 900})
        assert shown.page.evaluate(TOO_WIDE, [shown.root.element_handle(), at, ON_PURPOSE]) == [], width


def test_moves_are_told_drawn_and_reach_python_and_python_moves_the_same(moved: Shown) -> None:
    """Each field to both ends: in words, one message for each move, and set by Python it looks the same."""
    for control, told in moved.controls.items():
        moved.set({})
        first = moved.look()
        ends = {told["values"][0]: False, moved.last(control, first.values): True}
        drawings = {first.drawn}
        for value, is_last in ends.items():
            if value == first.values[control]:
                continue
            moved.move(control, is_last)
            by_hand = moved.look()
            assert (by_hand.values[control], by_hand.saved) == (value, MESSAGES.get((moved.name, control), 1)), control
            if told["kind"] == "slider" and (moved.name, control) not in OWN_WORDS:
                assert by_hand.fields[told["label"]][2] == told["words"][told["values"].index(value)]
            moved.set(by_hand.values)
            by_python = moved.look()
            assert (by_python.fields, by_python.drawn) == (by_hand.fields, by_hand.drawn), control
            assert by_python.saved == 0, control
            drawings.add(by_hand.drawn)
            moved.set({})
        assert len(drawings) > 1, f"{control} changes nothing"


def test_a_limit_takes_its_control_along(moved: Shown) -> None:
    for control, told in moved.controls.items():
        if limit := told["limit"]:
            moved.set({limit["by"]: moved.controls[limit["by"]]["values"][-1], control: told["values"][-1]})
            moved.move(limit["by"], to_the_end=False)
            values = moved.look().values
            assert values[limit["by"]] == moved.controls[limit["by"]]["values"][0]
            assert values[control] in (limit["most"][0], told["values"][0]), "along, or back to the start"
            assert moved.field(control).evaluate("(field) => field.value === field.max || field.value === field.min")


@pytest.mark.nightly
def test_no_sheet_changes_another_explorer(shown: Shown) -> None:
    """Whichever sheet comes later."""
    others = "\n".join(explorer.text("css") for name, explorer in EXPLORERS.items() if name != shown.name)
    for width in (1000, 340):
        shown.page.set_viewport_size({"width": width, "height": 900})
        assert shown.root.evaluate(CHANGED, others) == []


@pytest.mark.timed
def test_a_move_redraws_at_once(moved: Shown) -> None:
    times = moved.root.evaluate(TIMES)
    assert times[len(times) // 2] < 20, times

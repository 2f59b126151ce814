"""The explorer's numbers, its messages to the browser, and its picture, all without a browser."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest
import torch

from course_lib.numerics.formats import BF16, FORMATS, FP4_E2M1, FP16, FP32, TORCH_DTYPES, FloatFormat
from course_pages.lesson01 import explorer as bits
from course_pages.lesson01.explorer import BitExplorer, bit_rows, describe, draw


def row(value: float, form: FloatFormat) -> bits.BitRow:
    return bit_rows(value, [form])[0]


def test_a_tenth_in_fp16() -> None:
    tenth = row(0.1, FP16)
    assert tenth.bits == "0" + "01011" + "1001100110"
    assert tenth.stored == 0.0999755859375
    assert (tenth.below, tenth.above) == (0.09991455078125, 0.10003662109375)
    assert tenth.error == 0.1 - 0.0999755859375
    assert tenth.relative == pytest.approx(2.44140625e-4)
    assert tenth.note == ""


@pytest.mark.parametrize(
    ("value", "form", "note"),
    [
        (1.0, FP16, ""),
        (0.0, FP16, "zero"),
        (-0.0, FP16, "negative zero"),
        (1e-8, FP16, "rounds to zero"),
        (2.0**-24, FP16, "smallest subnormal"),
        (2.0**-20, FP16, "subnormal"),
        (2.0**-14, FP16, "smallest normal"),
        (65504.0, FP16, "largest finite"),
        (-65504.0, FP16, "largest finite"),
        (65519.99, FP16, "held at the largest"),
        (65520.0, FP16, "overflows to infinity"),
        (math.inf, FP16, "infinity"),
        (math.nan, FP16, "not a number"),
        (math.nan, FP4_E2M1, "has no nan"),
        (1e6, FP4_E2M1, "held at the largest"),
        (1e6, FloatFormat(4, 3, specials="fn", overflow="nan"), "overflows to nan"),
        (1e6, FloatFormat(4, 3, specials="fn", overflow="saturate"), "held at the largest"),
    ],
)
def test_special_cases_in_words(value: float, form: FloatFormat, note: str) -> None:
    assert row(value, form).note == note


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_agree_with_the_format(form: FloatFormat) -> None:
    draw_from = random.Random(form.bits)
    spread = math.log2(form.max) + 1
    for _ in range(300):
        value = draw_from.uniform(-1, 1) * 2.0 ** min(1023, draw_from.uniform(-spread, spread))
        made = row(value, form)
        assert made.stored == float(form.round(value))
        assert len(made.bits) == form.bits
        assert made.bits[0] == ("1" if value < 0 else "0")
        assert not made.below >= made.stored and not made.above <= made.stored
        assert (made.error == 0) == (made.stored == value) == (made.relative == 0)


@pytest.mark.parametrize("name", sorted(set(TORCH_DTYPES) & {"fp16", "bf16", "fp32", "fp64"}))
def test_bits_are_torchs_own(name: str) -> None:
    form = next(each for each in FORMATS if each.name == name)
    integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[form.bits]
    for value in (0.1, -1 / 3, math.pi, 1e-8, 65504.0, -0.0, math.inf):
        pattern = torch.tensor(value, dtype=torch.float64).to(TORCH_DTYPES[name]).view(integers).item()
        assert row(value, form).bits == f"{pattern % 2**form.bits:0{form.bits}b}"


def test_a_value_beyond_every_finite_format_has_an_infinite_error() -> None:
    held = row(math.inf, FP4_E2M1)
    assert (held.stored, held.error, held.relative) == (6.0, math.inf, math.inf)


def test_formats_travel_as_json() -> None:
    described = json.loads(json.dumps([describe(each) for each in FORMATS]))
    assert described[FORMATS.index(FP16)] == {
        "name": "fp16", "exponent_bits": 5, "fraction_bits": 10, "bias": 15, "specials": "ieee", "overflow": "inf",
        "max_pattern": "0x7bff", "nan_pattern": "0x7e00",
    }  # fmt: skip
    assert described[FORMATS.index(FP4_E2M1)]["nan_pattern"] is None


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e300])
def test_every_float_survives_the_way_to_the_browser_and_back(value: float) -> None:
    explorer = BitExplorer(value=value)
    state = json.loads(json.dumps(explorer.get_state("value")))
    explorer.value = 1.5
    explorer.set_state(state)
    assert repr(explorer.value) == repr(value)


def test_what_the_browser_sent_is_not_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a reader who types fast would see an older number return and replace the newer one."""
    explorer, sent = BitExplorer(0.1), []
    monkeypatch.setattr(explorer, "_send", lambda message, **_: sent.append(message))
    explorer.set_state({"value": struct.pack(">d", 1e-8).hex()})
    assert explorer.value == 1e-8
    assert [message for message in sent if message["method"] != "echo_update"] == []
    explorer.value = 2.0
    assert sent[-1]["state"] == {"value": "4000000000000000"}


def test_the_explorer_follows_its_value() -> None:
    explorer = BitExplorer(0.1, formats=(FP32, BF16))
    assert [each.name for each in explorer.rows] == ["fp32", "bf16"]
    explorer.value = 257
    assert [each.stored for each in explorer.rows] == [257.0, 256.0]


@pytest.mark.parametrize("formats", [(), (FP16, BF16, FP16)])
def test_formats_need_names_of_their_own(formats: tuple[FloatFormat, ...]) -> None:
    with pytest.raises(ValueError, match="each with a name of its own"):
        BitExplorer(formats=formats)


@pytest.mark.parametrize("value", [0.1, -9.87654321e-30, 65520.0, math.nan])
def test_nothing_in_the_picture_is_cut_off_or_written_over(value: float) -> None:
    figure = draw(value, FORMATS[1:])
    figure.draw_without_rendering()
    words = [text.get_window_extent() for text in figure.axes[0].texts if len(text.get_text()) > 1]
    assert len(words) >= 2 * len(FORMATS[1:])
    for i, box in enumerate(words):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in words[i + 1 :])

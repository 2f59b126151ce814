"""The ZeRO explorer's table, its sentence and its picture, without a browser."""

from __future__ import annotations

import pytest

from course_kit.units import Bytes, Seconds
from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup
from course_pages.lesson10.explorer import (
    GPUS,
    MODELS,
    MOST_RANKS,
    RANKS,
    SEQUENCES,
    STAGES,
    ZeroExplorer,
    at_most,
    zero_table,
)


@pytest.mark.parametrize("row", [zoo.GPT2_XL, zoo.LLAMA3_70B])
def test_the_table_holds_what_the_library_predicts(row: zoo.Published) -> None:
    """The whole model, not only its number of parameters; Adam's step counters aside, which the paper does not have."""
    table = zero_table()
    for place, ranks in enumerate(RANKS):
        for zero in range(len(STAGES)):
            setup = Setup(row, ranks, precision="mixed", data=ranks, zero=zero)  # type: ignore[arg-type]
            states = predict.model_states(setup)
            assert table["states"][row.name][place][zero] == list(map(int, states.values()))[:3]
            sent = sum((each.bytes for each in predict.data_traffic(setup).values()), Bytes(0))
            assert table["sent"][row.name][place][zero] == f"{sent:.1GB}"
            for name, gpu in GPUS.items():
                assert table["seconds"][name][row.name][place][zero] == f"{Seconds(sent / gpu.link_bytes_per_s):.1}"


@pytest.mark.parametrize("model", ["GPT-3 6.7B", "Llama 3 405B"])
@pytest.mark.parametrize("gpu", ["V100 32GB", "H200 141GB"])
def test_the_fewest_ranks_are_enough_and_one_less_is_not(model: str, gpu: str) -> None:
    memory = GPUS[gpu].usable
    for sequences, each in zip(SEQUENCES, zero_table()["fewest"][gpu][model]):
        for zero, fewest in enumerate(each):
            assert at_most(model, fewest or MOST_RANKS, zero, sequences).total > memory or fewest
            assert fewest <= 1 or at_most(model, fewest - 1, zero, sequences).total > memory
            assert not fewest or at_most(model, fewest, zero, sequences).total <= memory


def test_activations_are_every_blocks_input() -> None:
    """GPT-3's 96 blocks of 2 × 2048 × 12288 numbers in 16 bits."""
    account = ZeroExplorer(model="GPT-3 175B", sequences=2).accounts["3: and weights"]
    assert account.activations == 96 * 2 * 2048 * 12288 * 2
    setup = Setup(zoo.GPT3_175B, 2, precision="mixed", recompute="full")
    assert account.activations == predict.activations_paper(setup)


def test_what_is_whole_for_a_moment_counts_and_is_not_cut() -> None:
    """Llama 3 405B, 126 equal blocks: two of them and both ends in 2 bytes; 16Ψ/77 alone would fit on a card."""
    block = (int(predict.parameters(zoo.LLAMA3_405B)) - 2 * 128256 * 16384 - 16384) // 126
    for ranks in (1, 64):
        whole = at_most("Llama 3 405B", ranks, 3, 0).temporaries
        assert whole == pytest.approx(2 * (2 * block + 2 * 128256 * 16384 + 16384), abs=10)
    assert at_most("Llama 3 405B", 64, 2, 0).temporaries == 0
    assert at_most("Llama 3 405B", 64, 2, 1).temporaries == 3 * 4 * 8192 * 128256, "more than its block keeps"
    fewest = zero_table()["fewest"]["H100 SXM 80GB"]["Llama 3 405B"]
    assert [fewest[place][3] for place in range(3)] == [102, 375, 0]


def test_the_papers_figure_is_among_the_places() -> None:
    """16Ψ on one rank; 2Ψ + 14Ψ/64 on 64."""
    psi = int(predict.parameters(zoo.GPT3_6_7B))
    explorer = ZeroExplorer(model="GPT-3 6.7B", ranks=1)
    assert {int(account.total - account.temporaries) for account in explorer.accounts.values()} == {16 * psi}
    explorer.ranks = 64
    assert explorer.accounts["2: and gradients"].total == pytest.approx((2 + 14 / 64) * psi, abs=2)


def test_cards_and_models_stand_in_the_order_of_their_size() -> None:
    assert [gpu.memory for gpu in GPUS.values()] == sorted(gpu.memory for gpu in GPUS.values())
    counts = [row.parameters for row in MODELS.values()]
    assert counts == sorted(counts)

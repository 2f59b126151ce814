"""Tokens on disk: bytes, samples that share their ends, and pages that nobody has read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from course_lib.data.tokens import TokenFile, write_tokens
from course_pages.lesson15 import memory


def test_a_token_is_two_bytes_and_comes_back(tmp_path: Path) -> None:
    tokens = [0, 1, 255, 256, 65_535, 7, 8, 9, 10, 11, 12]
    assert write_tokens(tmp_path / "t", tokens) == 22 == (tmp_path / "t").stat().st_size
    assert (tmp_path / "t").read_bytes()[8:10] == b"\xff\xff" and (tmp_path / "t").read_bytes()[6:8] == b"\x00\x01"
    file = TokenFile(tmp_path / "t", length=3)
    assert len(file) == 3  # 10 targets, three a sample; one is left over
    assert file.rows([2, 0]).tolist() == [tokens[6:10], tokens[:4]]
    assert file.rows([1]).dtype == torch.int64


def test_every_token_but_the_first_is_a_target_once(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t", range(101))
    rows = TokenFile(tmp_path / "t", length=10).rows(range(10))
    assert rows[:, 1:].flatten().tolist() == list(range(1, 101))


@pytest.mark.parametrize("tokens", [[65_536], [-1]])
def test_a_token_that_does_not_fit_is_refused(tmp_path: Path, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="16 bits hold 0 to 65535"):
        write_tokens(tmp_path / "t", tokens)


def test_too_short_a_file_and_a_sample_that_there_is_not_are_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t", range(10))
    with pytest.raises(ValueError, match="has 10 tokens: a sample of length 10 needs 11"):
        TokenFile(tmp_path / "t", length=10)
    for sample in (-1, 3):
        with pytest.raises(IndexError, match="there are 3"):
            TokenFile(tmp_path / "t", length=3).rows([sample])


@pytest.mark.skipif(not memory.COUNTS, reason="the kernel tells no pages")
def test_a_sample_brings_pages_and_not_the_file(tmp_path: Path) -> None:
    size = write_tokens(tmp_path / "t", np.zeros(2**24, dtype=np.uint16))
    file = TokenFile(tmp_path / "t", length=1024)
    assert memory.mapped_and_resident(tmp_path / "t") == (size, 0)
    file.rows([5000])
    assert 0 < memory.mapped_and_resident(tmp_path / "t")[1] <= size / 4  # the kernel reads some pages around it, too

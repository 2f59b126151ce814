"""Errors as a table: what is called, and words of the sentence that the user reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refused(*table: tuple[Callable[[], object], str], error: type[Exception] = ValueError) -> Any:
    """A test for each row (call, words): the call raises the error, and the words match its message."""

    @pytest.mark.parametrize(("call", "words"), table, ids=[words for _, words in table])
    def test(call: Callable[[], object], words: str) -> None:
        with pytest.raises(error, match=words):
            call()

    return test

"""Corpora as their authors print them; each number is a row of tests/published/data.json, which has the sources."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A part of a mixture: its tokens, its share of the draws, and its epochs as the paper has them."""

    tokens_e9: float
    percent: float
    epochs: float


GPT3 = {
    "Common Crawl": Source(410, 60, 0.44), "WebText2": Source(19, 22, 2.9), "Books1": Source(12, 8, 1.9),
    "Books2": Source(55, 8, 0.43), "Wikipedia": Source(3, 3, 3.4),
}  # fmt: skip
"""Brown et al. 2020, Table 2.2; the run reads 300e9 tokens."""

MT_NLG = {
    "Books3": Source(25.7, 14.3, 1.5), "OpenWebText2": Source(14.8, 19.3, 3.6),
    "Stack Exchange": Source(11.6, 5.7, 1.4), "PubMed Abstracts": Source(4.4, 2.9, 1.8),
    "Wikipedia": Source(4.2, 4.8, 3.2), "PG-19": Source(2.7, 0.9, 0.9), "BookCorpus2": Source(1.5, 1.0, 1.8),
    "NIH ExPorter": Source(0.3, 0.2, 1.8), "ArXiv": Source(20.8, 1.4, 0.2), "GitHub": Source(24.3, 1.6, 0.2),
    "Pile-CC": Source(49.8, 9.4, 0.5), "CC-2020-50": Source(68.7, 13.0, 0.5),
    "CC-2021-04": Source(82.6, 15.7, 0.5), "Realnews": Source(21.9, 9.0, 1.1), "CC-Stories": Source(5.3, 0.9, 0.5),
}  # fmt: skip
"""Smith et al. 2022, the table of its data; the epochs tell the number of tokens read."""

MASSIVE_TEXT = {
    "MassiveWeb": (1.9, 506), "Books": (2.1, 560), "C4": (0.75, 182), "News": (2.7, 676), "GitHub": (3.1, 422),
    "Wikipedia": (0.001, 4),
}  # fmt: skip
"""Rae et al. 2021: terabytes and 1e9 tokens of each part."""

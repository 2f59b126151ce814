"""Packing: documents of any length in rows of one length, and the mask that keeps them apart inside of a row.

Three documents, the last of them cut off where the row ends:

    document      0  0  0  1  1  1  1  1  2  2         a row of ten tokens
    position      0  1  2  0  1  2  3  4  0  1         counted from the document's own start
    attends to    its own document, up to itself
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Row(NamedTuple):
    """A row of a stream of documents; both tensors have one number for each of its tokens.

    Attributes:
        document_S: number of the document that the token belongs to.
        position_S: the token's place in its document, which may have begun in an earlier row.
    """

    document_S: Int[Tensor, " seq"]
    position_S: Int[Tensor, " seq"]


def packed_row(lengths: npt.ArrayLike, sample: int, seq: int) -> Row:
    """Row number `sample`, of `seq` tokens, of documents of these lengths, put end to end. No token is filled in.

    The row is found by bisection: any row costs the same, and its number is all that a restart needs.

    Raises:
        ValueError: the documents end before this row does, or the row's number is below 0.
    """
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    places = np.arange(sample * seq, (sample + 1) * seq)
    if sample < 0 or not len(ends) or places[-1] >= ends[-1]:
        raise ValueError(f"row {sample} of {seq} tokens does not lie within {ends[-1] if len(ends) else 0} tokens")
    document = np.searchsorted(ends, places, side="right")  # an end belongs to the next document
    starts = np.concatenate([[0], ends[:-1]])
    return Row(torch.from_numpy(document), torch.from_numpy(places - starts[document]))


def document_mask(document_S: Int[Tensor, " seq"]) -> Bool[Tensor, "seq seq"]:
    """The attention mask: token q attends to k of the same document, k not after q. A row of S tokens costs S² bytes.

    Pass the mask to `scaled_dot_product_attention` as `attn_mask`.
    """
    same_SS = document_S[:, None] == document_S[None, :]
    return same_SS.tril()

"""Published numbers: the 245 runs of Hoffmann et al. 2022, mixtures of text, large models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.predict.laws import Runs

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
"""Models and mixtures; "about" names the sources."""


def chinchilla() -> Runs:
    """The runs of Figure 4, decoded by Besiroglu et al. 2024. The five of the largest losses seem to have failed."""
    points = np.array(json.loads(Path(__file__).with_name("chinchilla.json").read_text("utf-8"))["points"])
    return Runs(points[:, 0], points[:, 1] / 6 / points[:, 0], points[:, 2])

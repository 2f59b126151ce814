"""What is drawn of data parallelism are the numbers that were predicted."""

import numpy as np
import pytest

from course_kit.units import Bytes, Seconds
from course_lib import predict
from course_lib.predict.overlap import GradientReady
from course_pages.lesson07 import pictures as data_parallel

LINK = predict.Link(Seconds(0.5), 0.01)
GRADIENTS = [GradientReady("b", 100, 1.0), GradientReady("a", 100, 2.0)]
SIZES = {Bytes(size): predict.overlap(GRADIENTS, size, 2, LINK) for size in (1, 200)}


def test_buckets_change_colour_where_everybody_waits():
    picture = data_parallel.bucket_overlap(SIZES[Bytes(1)], SIZES, Bytes(1), caption="c", alt="a")
    times, ends = picture.figure.axes
    assert (picture.caption, picture.alt) == ("c", "a")
    bars = [path.get_extents() for c in times.collections for path in c.get_paths()]
    assert [x for bar in bars for x in (bar.x0, bar.x1)] == pytest.approx([0, 2000, 1000, 2000, 2000, 3000, 3000, 5000])
    assert [
        patch.get_extents().transformed(ends.transData.inverted()).height for patch in ends.patches
    ] == pytest.approx([2000, 3000, 2000, 3000])


def test_steps_and_examples_cross_at_the_critical_batch_size():
    figure = data_parallel.steps_and_examples_by_batch(100.0, caption="c").figure
    steps, examples, _ = (np.array(line.get_data()) for line in figure.axes[0].lines)
    middle = steps.shape[1] // 2
    assert steps[0][middle] == pytest.approx(100)
    assert steps[1][middle] == examples[1][middle] == pytest.approx(2)
    assert steps[1][0] == pytest.approx(101)

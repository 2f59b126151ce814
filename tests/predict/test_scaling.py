import pytest

from course_lib import predict
from course_lib.units import Flops, Seconds


def test_six_and_eight() -> None:
    assert predict.training_flops(10, 7) == Flops(420)
    assert predict.training_flops(10, 7, recompute=True) == Flops(560)


def test_time_and_utilization_are_inverses() -> None:
    flops = predict.training_flops(1e9, 20e9)
    time = predict.training_time(flops, devices=8, flops_per_s=0.4 * 312e12)
    assert isinstance(time, Seconds)
    assert predict.utilization(flops, time, 8, 312e12) == pytest.approx(0.4)


@pytest.mark.parametrize(("devices", "speed"), [(0, 1e12), (8, 0.0), (-1, 1e12)])
def test_nothing_takes_no_time(devices: int, speed: float) -> None:
    with pytest.raises(ValueError, match="both must be positive"):
        predict.training_time(1e20, devices, speed)

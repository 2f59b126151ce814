"""Random streams: SplitMix64 bit for bit, one stream for each name, no overlap between neighbours."""

from itertools import islice

from course_lib.model.seeds import integers, mix, scramble

GOLDEN = 0x9E3779B97F4A7C15


def test_scramble_is_splitmix64() -> None:
    """The published first outputs of SplitMix64 for the seed 1234567."""
    states = [(1234567 + GOLDEN * n) % 2**64 for n in (1, 2, 3)]
    assert [scramble(s) for s in states] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_stream_belongs_to_its_names() -> None:
    assert list(islice(integers(1, 2, 3), 5)) == list(islice(integers(1, 2, 3), 5))
    names = [(), (0,), (1,), (-1,), (0, 0), (0, 1), (1, 0), (0, 0, 1)]
    assert len({mix(*n) for n in names}) == len(names)


def test_neighbouring_streams_do_not_overlap() -> None:
    """A stream that only shifted its neighbour's would give two steps nearly the same batch."""
    streams = [set(islice(integers(0, step, row), 50)) for step in range(20) for row in range(20)]
    assert len(set().union(*streams)) == 20 * 20 * 50


def test_bits_are_balanced() -> None:
    draws = list(islice(integers(7), 4000))
    for bit in range(64):
        share = sum(draw >> bit & 1 for draw in draws) / len(draws)
        assert abs(share - 0.5) < 5 * 0.5 / len(draws) ** 0.5

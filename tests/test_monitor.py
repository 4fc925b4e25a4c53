"""The reports of a training."""

import pytest

from nmt.training import monitor
from nmt.training.monitor import Pace


class Clock:
    """A clock that is advanced by hand."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(monitor, "time", made)
    return made


def lines(pace: Pace, clock: Clock, seconds: float, tokens: int = 100) -> list[str]:
    """The messages of the next ten updates, of the given seconds each."""
    said = []
    for _ in range(10):
        clock.now += seconds
        said.append(pace.add(tokens))
    return [line for line in said if line]


def test_updates_that_become_slow_are_reported_once(clock: Clock) -> None:
    pace = Pace()
    assert lines(pace, clock, 0.5) == []
    assert lines(pace, clock, 1.4) == []
    (line,) = lines(pace, clock, 1.6)
    assert "the last 10 updates took 3.2 times as long as the first ones" in line
    assert "(62 target tokens a second, 200 at first)" in line
    assert lines(pace, clock, 40.0) == []  # known
    assert lines(pace, clock, 1.0) == []
    assert lines(pace, clock, 0.5) == []  # over
    assert len(lines(pace, clock, 1.6)) == 1


def test_larger_updates_and_validations_are_not_slow(clock: Clock) -> None:
    pace = Pace()
    assert lines(pace, clock, 0.5) == []
    assert lines(pace, clock, 5.0, tokens=1000) == []
    clock.now += 100  # a validation
    pace.exclude(100)
    assert lines(pace, clock, 0.5) == []

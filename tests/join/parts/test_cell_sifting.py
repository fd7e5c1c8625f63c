"""Rows that miss wait by one compiled call as they do by many."""

from pathlib import Path

import numpy as np
import pytest
from tests.join.streams import batch, build_uneven, join_on

from tidemill.join.drive import drive
from tidemill.join.moij import MoijJoin
from tidemill.join.output import How

_KEYS = 4000


class Unknown:
    """What no index is."""


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("memory_bytes", [150_000, 600_000])
def test_one_call_does_what_many_do(
    how: How, memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Keys with rows on two pages, keys between others, keys before the first and behind the last."""
    master, chance = build_uneven(tmp_path, _KEYS), np.random.default_rng(4)
    keys = [2 * (chance.zipf(1.3, 1500) * 37 % _KEYS) + (chance.random(1500) < 0.1) for _ in range(12)]
    stream = [batch([*some, -3, 2 * _KEYS - 2, 2 * _KEYS - 1, 2**62]) for some in keys]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    found = []
    for index in (None, Unknown):
        if index is not None:
            monkeypatch.setattr("tidemill.join.parts.arriving_join.PageIndex", index)
        join = join_on("moij", master, memory_bytes, how=how)
        assert isinstance(join, MoijJoin)
        calls = _count_sifts(join, monkeypatch)
        steps = [
            (
                *(
                    report.waited_rows,
                    report.hot_hits,
                    report.disk_matches,
                    report.unmatched,
                    report.pages_read,
                ),
                [output.to_pydict() for output in report.outputs],
            )
            for report in drive(join, stream)
        ]
        assert bool(calls) is (index is None)
        found.append((steps, join._rows.reach.tolist(), sorted(join._rows.hot_codes.tolist())))
    assert found[0] == found[1]


def _count_sifts(join: MoijJoin, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    sift = join._rows.sift
    monkeypatch.setattr(join._rows, "sift", lambda *given: (calls.append(1), sift(*given))[1])
    return calls

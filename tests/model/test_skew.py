"""Skew from a sample: found from few of many keys, and not found where there is none."""

import numpy as np
import pytest

from tidemill.core.errors import SpecError
from tidemill.model.skew import zipf_exponent
from tidemill.testing.zipf import Zipf

KEYS = 10_000_000


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.25])
def test_the_exponent_is_found_from_a_fiftieth_of_the_keys(exponent: float) -> None:
    sample = Zipf(KEYS, exponent=exponent, seed=11).draw(200_000)
    assert zipf_exponent(sample, keys=KEYS) == pytest.approx(exponent, abs=0.05)


def test_which_keys_are_popular_does_not_matter() -> None:
    sample = Zipf(100_000, exponent=0.8, seed=3).draw(50_000)
    renamed = np.random.default_rng(5).permutation(100_000)[sample]
    assert zipf_exponent(renamed, keys=100_000) == zipf_exponent(sample, keys=100_000)


def test_a_small_sample_still_tells_skew_from_none() -> None:
    assert zipf_exponent(Zipf(KEYS, exponent=1.0, seed=2).draw(5_000), keys=KEYS) == pytest.approx(1, abs=0.1)


def test_no_rows_tell_nothing() -> None:
    with pytest.raises(SpecError, match="no rows"):
        zipf_exponent(np.empty(0, dtype=np.int64), keys=10)

"""A planned death for tests: TIDEMILL_FAIL_LOADER=before_commit:N or after_commit:N."""

import os
from typing import Literal

from tidemill.core.errors import SpecError

VARIABLE = "TIDEMILL_FAIL_LOADER"
Place = Literal["before_commit", "after_commit"]


class Failpoint:
    """Ends the process at the Nth commit of a batch, as kill -9 would: no answer, no clean-up."""

    def __init__(self, setting: str = "") -> None:
        self._place, _, count = setting.partition(":")
        if setting and (self._place not in ("before_commit", "after_commit") or not count.isdecimal()):
            raise SpecError(
                f"{VARIABLE}={setting} is no failpoint",
                code="bad_failpoint",
                next_move="write before_commit:N or after_commit:N",
            )
        self._left = int(count or 0)

    def reached(self, place: Place) -> None:
        if place == self._place:
            self._left -= 1
            if self._left == 0:
                os._exit(137)


__all__ = ["VARIABLE", "Failpoint", "Place"]

"""When a running query goes over to newer master data: at each batch, every so often, or never."""

import math
from dataclasses import dataclass

from tidemill.core.errors import SpecError
from tidemill.core.units import parse_span_ms


@dataclass(frozen=True)
class Claim:
    """What a batch has claimed."""

    version: int
    claimed_unix_ms: int
    first_claimed_unix_ms: int
    """When a batch of the query claimed this version for the first time in a row."""


@dataclass(frozen=True)
class Refresh:
    """A policy, asked once a batch.

    >>> Refresh.parse("batch"), Refresh.parse("30 s"), Refresh.parse("never")
    (Refresh(every_seconds=0.0), Refresh(every_seconds=30.0), Refresh(every_seconds=inf))
    """

    every_seconds: float
    """A version stays for so long at least, even when a newer one is there."""

    @classmethod
    def parse(cls, text: str) -> "Refresh":
        """The policy that a word or a span of time names.

        Args:
            text: "batch": each batch has the version that is current when it begins, hence a change with the first
                batch after it. "30 s", "5 min", "1 h": a version stays for so long. "never": the query keeps the
                version of its first batch.
        """
        if text in ("batch", "never"):
            return cls(0.0 if text == "batch" else math.inf)
        try:
            return cls(parse_span_ms(text) / 1000)
        except SpecError as error:
            raise SpecError(
                f"{text!r} does not say when to refresh master data",
                code="bad_refresh",
                next_move='write "batch", "never", or a span of time such as "30 s" or "5 min"',
                given=text,
            ) from error

    def choose(self, current_version: int, last_claim: Claim | None, *, now_unix_ms: int) -> int:
        """The version for a new batch.

        Args:
            current_version: Of the store, now.
            last_claim: Of the batch before it, if there was one.
            now_unix_ms: Time of the choice.
        """
        if last_claim is None:
            return current_version
        is_due = now_unix_ms - last_claim.first_claimed_unix_ms >= self.every_seconds * 1000
        return current_version if is_due else last_claim.version


__all__ = ["Claim", "Refresh"]

"""What the benchmarks' commands share: options refused, progress followed, bad results made an error."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.core.errors import CheckError, InternalError, SpecError

if TYPE_CHECKING:
    from rich.progress import Progress


def follow(bar: "Progress") -> Callable[[str, float], None]:
    """One line that moves; what took seconds to build stays above it."""
    task = bar.add_task("starting", total=1.0)

    def show(text: str, share: float) -> None:
        bar.update(task, description=text, completed=share)
        if text.startswith("built"):
            bar.console.print(text)

    return show


def require(option: str, holds: bool, given: object, wanted: str) -> None:
    if not holds:
        raise SpecError(
            f"{option} must be {wanted}, not {given}",
            code="bad_option",
            next_move=f"give {option} {wanted}",
            option=option,
            given=given,
        )


def refuse_bad(results: list[dict[str, Any]], judge: str, narrowed_by: str) -> None:
    """Wrong rows weigh more than a cell that ended early."""
    wrong = sorted({r["contender"] for r in results if r["same_rows"] is False})
    if wrong:
        raise CheckError(
            f"rows of {', '.join(wrong)} differ from {judge}",
            code="other_rows",
            next_move="run the cell again with the same --seed and report it",
        )
    failed = sorted({r["contender"] for r in results if r["failed"]})
    if failed:
        raise InternalError(
            f"cells of {', '.join(failed)} failed, their reasons are printed above",
            code="cell_failed",
            next_move=f"run them again with {narrowed_by}, and with --resume to keep the others",
        )


__all__ = ["follow", "refuse_bad", "require"]

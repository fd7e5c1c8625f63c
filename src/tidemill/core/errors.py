"""One root error; families by who must act."""

from typing import Any, ClassVar


class TidemillError(Exception):
    """What happened, with its facts, and what to do next.

    Facts given as keywords stay attributes. `retryable` alone decides a retry. Errors cross process
    borders (Spark workers, loader), so they pickle.

    >>> error = StoreError("page 17 is corrupt", code="page_corrupt", next_move="rebuild the store", page=17)
    >>> str(error), error.page, error.retryable
    ('page 17 is corrupt. Next: rebuild the store', 17, False)
    """

    family: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70

    def __init__(
        self, what: str, *, code: str, next_move: str = "", retryable: bool = False, **facts: Any
    ) -> None:
        self.what = what
        self.code = code
        self.next_move = next_move
        self.retryable = retryable
        self.facts = facts
        super().__init__(f"{what}. Next: {next_move}" if next_move else what)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute or fact {name!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.what, self.code, self.next_move, self.retryable, self.facts)


def _revive(
    kind: type[TidemillError], what: str, code: str, next_move: str, retryable: bool, facts: dict[str, Any]
) -> TidemillError:
    return kind(what, code=code, next_move=next_move, retryable=retryable, **facts)


class CheckError(TidemillError):
    """Rows were lost, doubled or altered: the one thing that must never happen."""

    family = "check"
    exit_code = 1


class SpecError(TidemillError):
    """The user asked for something that cannot be; found before anything starts."""

    family = "spec"
    exit_code = 2


class SourceError(TidemillError):
    """A source, its hook or its connection."""

    family = "source"
    exit_code = 3


class StoreError(TidemillError):
    """A file or store of ours on disk: staging log, master data, spool."""

    family = "store"
    exit_code = 4


class LoadError(TidemillError):
    """The loader or the warehouse behind it."""

    family = "load"
    exit_code = 5


class BudgetError(TidemillError):
    """The memory given is too small for what is asked."""

    family = "budget"
    exit_code = 6


class InternalError(TidemillError):
    """A fault of ours."""

    family = "internal"
    exit_code = 70


def unknown_choice(kind: str, given: str, valid: list[str]) -> SpecError:
    """An error that lists the valid choices and the nearest one."""
    import difflib

    near = difflib.get_close_matches(given, valid, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SpecError(
        f"unknown {kind} {given!r}",
        code=f"unknown_{kind.replace(' ', '_')}",
        next_move=f"{hint}valid: {', '.join(valid)}",
        given=given,
        valid=valid,
    )


__all__ = [
    "BudgetError",
    "CheckError",
    "InternalError",
    "LoadError",
    "SourceError",
    "SpecError",
    "StoreError",
    "TidemillError",
    "unknown_choice",
]

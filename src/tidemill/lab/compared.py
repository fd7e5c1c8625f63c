"""Predicted costs beside measured ones, as a finding."""

from collections.abc import Sequence

from tidemill.lab.experiment import Curve, Figure, Finding

CLOSE = 0.1
"""Of the measured cost: what the papers' figures show as the same."""

Compared = tuple[str, float, float, float]
"""Join, point of the figure, predicted and measured rows a second."""


def compared(found: Sequence[Compared], *, x_label: str) -> Finding:
    """Whether every prediction is close, and how far the worst is off."""
    errors = {(name, x): measured / predicted - 1 for name, x, predicted, measured in found}
    worst = {name: max((e for (n, _), e in errors.items() if n == name), key=abs) for name, *_ in found}
    far = {name: error for name, error in worst.items() if abs(error) > CLOSE}
    told = ", ".join(f"{name} {error:+.1%}" for name, error in worst.items())
    why = ", ".join(f"{name} by {abs(error):.0%}" for name, error in far.items())
    return Finding(
        holds=not far,
        measured=f"predicted against measured cost of a row, worst point of each join: {told}",
        reason=f"the model is off for {why}" if far else "",
        values={f"{name} at {x:g}, error": error for (name, x), error in errors.items()},
        figures=[_figure(found, x_label)],
    )


def _figure(found: Sequence[Compared], x_label: str) -> Figure:
    curves = []
    for name in dict.fromkeys(name for name, *_ in found):
        points = [one for one in found if one[0] == name]
        x = [at for _, at, _, _ in points]
        curves.append(Curve(label=f"{name}, measured", x=x, y=[1e6 / m for *_, m in points]))
        predicted = [1e6 / p for *_, p, _ in points]
        curves.append(Curve(label=f"{name}, predicted", x=x, y=predicted, kind="predicted"))
    return Figure(
        title="Cost of a stream row", x_label=x_label, y_label="µs a row", curves=curves, log_y=True
    )


__all__ = ["CLOSE", "Compared", "compared"]

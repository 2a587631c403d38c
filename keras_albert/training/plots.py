"""Plots the log of a run."""

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_albert.errors import optional_import
from keras_albert.storage import replacing
from keras_albert.training.run_log import CURVES_FILE, HELD_OUT, LogRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The panels of the plot. Each shows the columns of the log whose names end so.
PANELS = ("loss", "accuracy", "{best}", "tokens_per_second")


@functools.cache
def can_draw() -> bool:
    """Whether matplotlib can be imported; a broken one counts as missing."""
    try:
        importlib.import_module("matplotlib.figure")
    except Exception:  # not only ImportError: it may be built for another NumPy
        return False
    return True


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; AlbertError without matplotlib."""
    optional_import("matplotlib.figure", "plots", "a plot")
    from keras_albert.training.shown_figure import ShownFigure

    return ShownFigure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path, **options: Any) -> None:
    """Writes a figure as a PNG; `options` are those of `Figure.savefig`."""
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png", **options)


def draw_curves(
    rows: list[LogRow], folder: Path, best: str | None = None
) -> None:
    """Writes curves.png, see `curves_figure`."""
    save_figure(curves_figure(rows, best), folder / CURVES_FILE)


def curves_figure(rows: list[LogRow], best: str | None = None) -> "Figure":
    """Losses, accuracies, the score `best`, and speed over the steps.

    Held-out values have the colour of the training, and are dotted.
    """
    panels = {
        panel: names
        for panel in (each.format(best=best) for each in PANELS)
        if (names := [name for name in rows[0] if name.endswith(panel)])
    }
    figure = new_figure(5 * len(panels), 4)
    for axes, (panel, names) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0],
        panels.items(),
        strict=True,
    ):
        plain = list(dict.fromkeys(n.removeprefix(HELD_OUT) for n in names))
        for name in names:
            held_out = name.startswith(HELD_OUT)
            axes.plot(
                [row["step"] for row in rows],
                [row[name] for row in rows],
                ".--" if held_out else "-",
                color=f"C{plain.index(name.removeprefix(HELD_OUT))}",
                label=name.replace(HELD_OUT, "held-out ").replace("_", " "),
            )
        axes.set(xlabel="step", title=panel.replace("_", " "))
        axes.legend()
    return figure

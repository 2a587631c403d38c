"""Plots the log of a run."""

import importlib.util
from pathlib import Path

from keras_albert.storage import replacing
from keras_albert.training.run_log import CURVES_FILE, HELD_OUT, Row

# The panels of the plot. Each shows the columns of the log whose names end so.
PANELS = ("loss", "accuracy", "tokens_per_second")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_curves(rows: list[Row], folder: Path) -> None:
    """Writes curves.png: losses, accuracies and speed over the steps.

    The training and held-out values of a quantity have the same colour;
    held-out values are dotted.
    """
    from matplotlib.figure import Figure

    panels = {
        panel: names
        for panel in PANELS
        if (names := [name for name in rows[0] if name.endswith(panel)])
    }
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
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
    with replacing(folder / CURVES_FILE) as unfinished:
        figure.savefig(unfinished, format="png")

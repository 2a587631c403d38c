"""What happens inside a model: the command `inspect`, and attention.

`inspect` shows how far each layer moves the vectors of tokens. Figure 1 of the
paper: with shared layers the distances change smoothly from layer to layer and
do not converge to zero. L is the number of layers.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_albert.checkpoints.load import load
from keras_albert.data.table_files import READERS
from keras_albert.errors import (
    AlbertError,
    check_positive,
    is_whole,
    optional_import,
)
from keras_albert.finetuning.config import InspectRun
from keras_albert.modeling.backbone import encoder_of, padding_mask_of
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.inputs import as_texts, check_model
from keras_albert.storage import check_new_file
from keras_albert.text.files import check_files, read_lines
from keras_albert.training.plots import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"l2": "L2 distance", "degrees": "angle in degrees"}


def layer_distances(
    model: AlbertModel, texts: Sequence[str], batch_size: int = 32
) -> dict[str, np.ndarray]:
    """Distances of the input and the output of each layer.

    Args:
        model: a model with a vocabulary, with any head or none.
        texts: texts; longer ones are cut off.
        batch_size: texts at a time.

    Returns:
        "l2" and "degrees", float64 [L]: the means over all tokens of the
        Euclidean distance, and of the angle between both vectors.

    Raises:
        AlbertError: there are no texts, or the model has no vocabulary.

    Source: Paper Figure 1, which shows the angle as cosine similarity "in
    terms of degree".
    """
    check_positive("batch_size", batch_size)
    texts = as_texts(texts)
    backbone = encoder_of(model)
    sums, count = 0.0, 0
    for start in range(0, len(texts), batch_size):
        inputs = backbone.preprocess(texts[start : start + batch_size])
        # the input of the first layer: the sum of embeddings, projected to H
        embedded = backbone.embeddings(
            inputs["token_ids"], inputs.get("segment_ids")
        )
        states = backbone(inputs, return_hidden_states=True)["hidden_states"]
        # Padding has vectors, too, which would count in the means.
        is_token = ops.convert_to_numpy(padding_mask_of(inputs)) > 0
        vectors = [
            ops.convert_to_numpy(each)[is_token].astype("float64")
            for each in (embedded, *states)
        ]
        sums = sums + np.array(
            [_distances(a, b) for a, b in itertools.pairwise(vectors)]
        )
        count += is_token.sum()
    l2, degrees = (sums / count).T
    return {"l2": l2, "degrees": degrees}


def _distances(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Sums over tokens of the distance and of the angle of [N, H] vectors."""
    # Rounding may give equal vectors a cosine above 1, whose arc cosine is NaN.
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    cosine = np.clip((x * y).sum(axis=1) / lengths, -1, 1)
    distance = np.linalg.norm(x - y, axis=1)
    return distance.sum(), np.degrees(np.arccos(cosine)).sum()


def attention_figure(
    model: AlbertModel, text: str, pair: str | None = None, layer: int = -1
) -> "Figure":
    """Draws which tokens each token of a text attends to, head by head.

    Args:
        model: a model with a vocabulary, with any head or none.
        text: a text; up to some thirty tokens remain readable.
        pair: a second text.
        layer: the layer, from 0; -1 is the last one.

    Returns:
        a matplotlib figure with a panel for each head. A row of a panel is a
        token, and its shades are the probabilities with which it attends to
        the tokens of the columns: each row has a sum of 1.

    Raises:
        AlbertError: no such layer, no vocabulary, or no matplotlib.
    """
    check_model(model)
    backbone = encoder_of(model)
    texts = [text] if pair is None else ([text], [pair])
    inputs = backbone.preprocess(texts)
    layers = backbone(inputs, return_attention_scores=True)["attention_scores"]
    if not is_whole(layer) or not -len(layers) <= layer < len(layers):
        raise AlbertError(
            f"`layer` must be from 0 to {len(layers) - 1}, or negative to "
            f"count from the last one. Received: {layer!r}."
        )
    ids = inputs["token_ids"][0][inputs["padding_mask"][0] > 0]
    pieces = [backbone.tokenizer.id_to_piece(int(each)) for each in ids]
    scores = ops.convert_to_numpy(ops.cast(layers[layer][0], "float32"))
    heads, places = len(scores), range(len(pieces))
    columns = min(heads, 4)
    side = 1.5 + 0.14 * len(pieces)
    rows = math.ceil(heads / columns)
    figure = new_figure(columns * side, rows * (side + 0.5))
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for head, axes in enumerate(panels):
        if head >= heads:
            axes.set_axis_off()
            continue
        shown = scores[head, : len(pieces), : len(pieces)]
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        axes.set_title(f"head {head}", fontsize=8)
        # matplotlib would read what is between two "$" as a formula.
        style = {"fontsize": 6, "parse_math": False}
        axes.set_xticks(places, pieces, rotation=90, **style)
        axes.set_yticks(places, pieces, **style)
    return figure


def inspect(run: InspectRun) -> dict[str, dict[str, np.ndarray]]:
    """Prints and draws the distances of each model; returns them by model."""
    if run.output is not None:
        optional_import("matplotlib", "plots", "drawing the distances")
        check_new_file(run.output, ".png")
    (path,) = check_files(run.data)
    if path.suffix.lower() in READERS.keys() - {".txt"}:
        raise AlbertError(
            f"{path}: a table. `inspect` reads a text a line: write the texts "
            "of the table into a .txt file."
        )
    lines = (text for _, text in read_lines(path) if text.strip())
    texts = list(itertools.islice(lines, run.rows))
    if not texts:
        raise AlbertError(f"{path}: no text. Expected a text a line.")
    # All are loaded first, so that a wrong name is refused before any result.
    models = {source: load(source, backbone=True) for source in run.model}
    found = {}
    for source, model in models.items():
        found[source] = layer_distances(model, texts)
        print(f"{source}, {len(texts):,} texts")
        print(f"layer  {TITLES['l2']}  {TITLES['degrees']}")
        for layer, values in enumerate(
            zip(*found[source].values(), strict=True), start=1
        ):
            print(f"{layer:5}  {values[0]:11.3f}  {values[1]:16.2f}")
    if run.output is not None:
        _draw(found, run.output)
        print(f"-> {run.output}")
    return found


def _draw(found: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    figure = new_figure(10, 4)
    for axes, (name, title) in zip(
        figure.subplots(1, len(TITLES)), TITLES.items(), strict=True
    ):
        for source, distances in found.items():
            layers = range(1, len(distances[name]) + 1)
            axes.plot(
                layers, distances[name], "o-", label=source.replace("$", r"\$")
            )
        axes.set_xlabel("layer")
        axes.set_title(f"{title} of its input and output")
        axes.legend()
    save_figure(figure, path, dpi=100)

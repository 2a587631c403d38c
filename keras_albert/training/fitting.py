"""`model.fit` into a folder: what every training run has in common."""

import math
import shutil
import sys
from pathlib import Path

import keras
import numpy as np

from keras_albert.config import LOG_FILE, AlbertError
from keras_albert.training.folders import ModelFolder


def fit_into_folder(
    content: ModelFolder,
    folder: Path,
    batches,
    *,
    epochs: int,
    steps_per_epoch: int | None = None,
    validation=None,
) -> dict[str, list[float]]:
    """`fit` with a progress bar, `log.csv` and the newest model in `folder`.

    An interruption says what the folder keeps; a folder without a model is
    removed, so that the same command can be given again.

    Returns:
        The history: metric names to a value an epoch.

    Raises:
        AlbertError: the loss is not finite.
        KeyboardInterrupt: after the message.
    """
    keeper = KeepModel(content, folder)
    try:
        return content.model.fit(
            batches,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation,
            callbacks=[
                keras.callbacks.TerminateOnNaN(),
                keeper,
                keras.callbacks.CSVLogger(folder / LOG_FILE),
            ],
            shuffle=False,  # the dataset does it
            verbose=progress_verbosity(),
        ).history
    except KeyboardInterrupt:
        step = int(content.model.optimizer.iterations)
        print(f"\ninterrupted at step {step}; {keeper.rest()}", file=sys.stderr)
        raise
    except AlbertError as error:
        raise AlbertError(f"{error} {keeper.rest()}") from None


class KeepModel(keras.callbacks.Callback):
    """Keeps the newest good model; a loss that is not finite ends the run."""

    def __init__(self, content: ModelFolder, folder: Path):
        super().__init__()
        self.content = content
        self.folder = folder
        self.kept_step = None

    def on_epoch_end(self, epoch, logs=None):
        """Saves, or raises AlbertError; adds `step` to what is logged."""
        model = self.content.model
        step = int(model.optimizer.iterations)
        finite = all(map(math.isfinite, logs.values())) and all(
            np.isfinite(weight).all() for weight in model.get_weights()
        )
        if not finite:
            raise AlbertError(
                f"The training diverged by step {step} (loss {logs['loss']}). "
                "Lower the learning rate or lengthen the warm-up."
            )
        self.content.save(self.folder)
        self.kept_step = logs["step"] = step

    def rest(self) -> str:
        """What an ended run leaves; removes the folder if that is nothing."""
        if self.kept_step is None:
            shutil.rmtree(self.folder)
            return f"no model was kept, {self.folder} is removed."
        return f"{self.folder} keeps the model of step {self.kept_step}."


def progress_verbosity() -> int:
    """Keras: a moving bar on a terminal, a line per epoch in a log."""
    return 1 if sys.stdout.isatty() else 2

"""The command line: parse and call, nothing else.

Nothing heavy is imported before a command runs, so that help is instant.
"""

import contextlib
import importlib
import io
import os
import sys
import tempfile
from typing import Annotated

import tyro

from keras_albert.config import (
    AlbertError,
    ConvertRun,
    EvaluateRun,
    ExportRun,
    FinetuneRun,
    PredictRun,
    PrepareRun,
    PretrainRun,
    VocabRun,
)


def _vocab(run: VocabRun) -> None:
    from keras_albert.text.vocabulary import train_vocabulary

    tokenizer = train_vocabulary(run)
    print(f"{tokenizer.vocab_size:,} pieces -> {run.output}")


def _prepare(run: PrepareRun) -> None:
    if run.beam is None:
        from keras_albert.data.prepare import prepare
    else:
        from keras_albert.data.beam import prepare

    prepare(run)


def _pretrain(run: PretrainRun) -> None:
    from keras_albert.training.pretrain import pretrain

    pretrain(run)


def _finetune(run: FinetuneRun) -> None:
    from keras_albert.training.finetune import finetune

    finetune(run)


def _evaluate(run: EvaluateRun) -> None:
    from keras_albert.training.evaluate import evaluate

    evaluate(run)


def _predict(run: PredictRun) -> None:
    from keras_albert.training.predict import predict

    predict(run)


def _export(run: ExportRun) -> None:
    from keras_albert.export.saved_model import export

    export(run)


def _convert(run: ConvertRun) -> None:
    from keras_albert.training.convert import convert

    convert(run)


# In the order in which a user needs them.
COMMANDS = {
    "vocab": (VocabRun, _vocab),
    "prepare": (PrepareRun, _prepare),
    "pretrain": (PretrainRun, _pretrain),
    "finetune": (FinetuneRun, _finetune),
    "evaluate": (EvaluateRun, _evaluate),
    "predict": (PredictRun, _predict),
    "export": (ExportRun, _export),
    "convert": (ConvertRun, _convert),
}


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; exits with 2 on a user's mistake."""
    try:
        run = _parse(arguments)
        if type(run) not in (VocabRun, PrepareRun):  # text alone
            _load_backend()
        dict(COMMANDS.values())[type(run)](run)
    except (AlbertError, OSError) as error:  # OSError: no room, no permission
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _load_backend() -> None:
    """Imports Keras and TensorFlow without TensorFlow's start-up chatter.

    Raises:
        AlbertError: Keras cannot load the backend that it is told to.
    """
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryFile() as chatter, contextlib.ExitStack() as stack:
        if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0":
            # It comes from C++, below sys.stderr.
            stderr = os.dup(2)
            os.dup2(chatter.fileno(), 2)
            stack.callback(os.close, stderr)
            stack.callback(os.dup2, stderr, 2)
        try:
            import keras  # noqa: F401

            importlib.import_module("tensorflow")
        except (ImportError, ValueError) as error:
            raise AlbertError(
                f"cannot load the Keras backend {name!r} and TensorFlow, which "
                f"feeds the data ({error}). Set KERAS_BACKEND to tensorflow, "
                "jax or torch, and install that extra of keras-albert."
            ) from None


def _parse(arguments: list[str] | None):
    union = None
    for name, (run_class, _) in COMMANDS.items():
        command = Annotated[run_class, tyro.conf.subcommand(name)]
        union = command if union is None else union | command
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                union,
                prog="keras-albert",
                description=(
                    "Pretrain, fine-tune and serve ALBERT on the Keras backend "
                    "that KERAS_BACKEND names (tensorflow, jax or torch)."
                ),
                args=arguments,
            )
    except SystemExit as stop:
        # A value that our own checks refuse: one line instead of tyro's box.
        cause = stop.__context__
        while cause is not None:
            if isinstance(cause, AlbertError):
                raise cause from None
            cause = cause.__context__
        sys.stderr.write(complaint.getvalue())
        raise


if __name__ == "__main__":
    main()

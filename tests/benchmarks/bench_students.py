"""Ensembles, students and teachers of ALBERT-base beside ALBERT-base alone.

    python tests/benchmarks/bench_students.py

Each row of the table compares one of these with a single ALBERT-base:

- an ensemble of three models predicts;
- a student of a half or a quarter of the layers predicts;
- a student learns to fill in masked pieces from a teacher of the same size
  (`pretrain --teacher`), beside the same training step without a teacher.

Fine-tuning with a teacher has no line: the teacher is asked once, before the
training, and the steps are those of training without one. All weights are
random. Which of both is called first changes from pair to pair.

KERAS_BACKEND chooses the backend. Run it on a machine that does nothing else.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

from bench_model import CPU_ONLY, machine
from pairing import (
    benchmark_parser,
    paired_times,
    print_table,
    times_and_ratio,
    warm_up,
    write_report,
)
from workload import LEARNING_RATE, SIZES, Workload

import keras_albert as ka

MEMBERS = 3
Call = Callable[[], object]
TITLES = ("what", "its time, ms", "one model, ms", "ratio", "quartiles")


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints the table, and writes it where it is told to."""
    options = parser().parse_args(arguments)
    os.environ.update(CPU_ONLY)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    work, about = SIZES[options.size], machine() | {"backend": backend}
    print(
        f"{backend}, float32, {work.batch_size} rows of {work.length} tokens\n"
    )
    lines = [
        {"what": what} | measured(ours, alone, options.pairs)
        for what, ours, alone in sides(work)
    ]
    rows = ((line["what"], *times_and_ratio(line)) for line in lines)
    print_table(TITLES, rows)
    write_report(options, about | {"lines": lines})


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = benchmark_parser(__doc__, pairs=20)
    result.add_argument(
        "--size",
        choices=list(SIZES),
        default="base",
        help="of the models; tiny is for a test of this program",
    )
    return result


def sides(work: Workload) -> Iterator[tuple[str, Call, Call]]:
    """For each row its name, what is measured, and the model alone."""
    layers, x = work.config.num_hidden_layers, work.inputs()

    def predicting(model: "ka.AlbertModel") -> Call:
        return lambda: model.predict_on_batch(x)

    alone = predicting(classifier(work.config))
    ensemble = ka.AlbertEnsemble(
        [classifier(work.config) for _ in range(MEMBERS)]
    )
    yield f"an ensemble of {MEMBERS} predicts", predicting(ensemble), alone
    for depth in sorted({max(layers // part, 1) for part in (2, 4)}):
        student = classifier(work.config.replace(num_hidden_layers=depth))
        name = f"a student of {depth} of {layers} layers predicts"
        yield name, predicting(student), alone
    yield (
        "a training step with a teacher",
        training(work, has_teacher=True),
        training(work, has_teacher=False),
    )


def classifier(
    config: ka.AlbertConfig,
) -> "ka.AlbertForSequenceClassification":
    """A model with random weights that tells two classes apart."""
    return ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(config), num_labels=2
    )


def training(work: Workload, has_teacher: bool) -> Call:
    """A training step of the masked LM and the sentence order."""
    import keras

    from keras_albert.pretraining.model import compile_for_pretraining
    from keras_albert.pretraining.teacher import masked_logits_of
    from keras_albert.training.losses import MaskedLMDistillationLoss

    model = ka.AlbertForPretraining(ka.AlbertBackbone(work.config))
    loss = None
    if has_teacher:
        teacher = ka.AlbertForPretraining(ka.AlbertBackbone(work.config))
        teacher.trainable = False
        model.teacher = masked_logits_of(teacher, work.config.vocab_size)
        loss = MaskedLMDistillationLoss(share=0.5, temperature=2.0)
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    compile_for_pretraining(model, optimizer, loss)
    batch = work.training_batch()
    return lambda: model.train_on_batch(*batch)


def measured(ours: Call, alone: Call, pairs: int) -> dict:
    """The times of a line."""
    warm_up(ours)
    warm_up(alone)
    return paired_times(ours, alone, pairs).summary()


if __name__ == "__main__":
    sys.exit(main())

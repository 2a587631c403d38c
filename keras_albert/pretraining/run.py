"""Pretraining: token shards -> a folder with a pretrained model."""

import dataclasses
import functools
from collections.abc import Callable

import keras

from keras_albert.corpus.shards import ShardSet
from keras_albert.corpus.token_index import Corpus
from keras_albert.data.input_pipeline import import_tensorflow
from keras_albert.distribution.backend import backend_and_device, opened
from keras_albert.distribution.devices import Devices
from keras_albert.errors import AlbertError, errors_about
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import VARIANTS, AlbertConfig
from keras_albert.modeling.pretraining import AlbertForPretraining
from keras_albert.modeling.warm_start import warm_start
from keras_albert.modeling.weight_checks import weights_checksum
from keras_albert.pretraining.config import SIZES, ExampleConfig, PretrainRun
from keras_albert.pretraining.dataset import (
    ExampleStream,
    advice_on_pairs,
    check_documents,
    phased_dataset,
    validation_dataset,
)
from keras_albert.pretraining.flops import TRAINING, flops_per_example
from keras_albert.pretraining.model import (
    check_examples,
    compile_for_pretraining,
    pretraining_model,
)
from keras_albert.pretraining.packing import Packing
from keras_albert.pretraining.report import held_out_report, report_lines
from keras_albert.pretraining.sizes import activation_bytes
from keras_albert.pretraining.teacher import (
    load_teacher,
    masked_logits_of,
    read_teacher,
)
from keras_albert.storage import MANIFEST_FILE, checksum
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.cost import fit_with_cost
from keras_albert.training.loop import Timetable, Training, evaluate_until
from keras_albert.training.losses import MaskedLMDistillationLoss
from keras_albert.training.model_folder import PRETRAINING, ModelFolder
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.run_folder import (
    MADE_OF,
    STARTED_FROM,
    TAUGHT_BY,
    Checksums,
    RunFolder,
    check_same_models,
    same_settings,
    write_report,
)
from keras_albert.training.run_log import HELD_OUT, LogRow, check_tensorboard
from keras_albert.training.schedules import WarmupPolynomialDecay
from keras_albert.training.speed import Work, matrix_product_peak

FEW_PAIRS = 0.5  # share of examples below which a run says what to do
MANY_GIGABYTES = 5  # of activations; more are mentioned before a run
# Factor between the batch and the paper's that needs another learning rate.
FAR_BATCH = 2


def pretrain(run: PretrainRun) -> dict:
    """Pretrains a model, or continues an interrupted run of these settings.

    Returns the report, as in the folder. After training it is {} in all
    processes but the first; a finished run gives it to every process.

    Raises AlbertError if the input does not fit, before anything is written; or
    if the loss is not finite. The last good model is then kept.
    """
    import_tensorflow()  # before it could open a GPU of the backend
    with opened(run.devices, run.accumulate) as devices:
        devices.check_equal(same_settings(run))
        folder = RunFolder(run, devices)
        sources = [path for path in (run.data, run.validation) if path]
        report = folder.finished(sources, lambda: _checksums(run))
        if report:
            models = _models_of(run)
            devices.first(lambda: check_same_models(run.output, report, models))
            print(f"{run.output} holds this run, and it is finished:")
            print("\n".join(report_lines(report)))
            return report
        inputs = devices.each(lambda: _Inputs.of(run, devices))
        devices.check_equal(
            {
                "the config": dataclasses.asdict(inputs.config),
                **_checksums(run),
            }
        )
        devices.check_same_models(inputs.model_checksums)
        return _train(run, inputs, folder, devices)


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """The inputs of a run, opened and checked before anything is written."""

    shards: ShardSet
    held_out: ShardSet | None
    config: AlbertConfig
    source: AlbertModel | None
    """the model that the weights start from"""
    teacher: AlbertModel | None
    packing: Packing | None
    share_of_pairs: float | None
    """share of the examples that count for the sentence task, if any"""

    @classmethod
    def of(cls, run: PretrainRun, devices: Devices) -> "_Inputs":
        """Reads the inputs; raises AlbertError where they do not fit."""
        if run.tensorboard:
            check_tensorboard()
        devices.check_batch(run.batch_size, run.accumulate)
        shards = ShardSet.open(run.data)
        held_out = run.validation and ShardSet.open(run.validation)
        for each in (shards, held_out):
            if each:
                each.verify()
        with devices.alone():
            source = _source_of(run)
            teacher = _teacher_of(run, shards, devices)
        config = _config_of(run, source, shards)
        _check_fit(run, config, shards, held_out, source)
        devices.check(config)
        # The examples of both phases, where the first one has shorter rows.
        for examples in dict.fromkeys((run.examples_of(1), run.examples)):
            stream = ExampleStream(shards, examples, run.seed)
            stream.check_pairs()
        has_task = run.examples.sentence_task != "none"
        pairs = stream.share_of_pairs if has_task else None
        models, packing = (source, teacher), stream.packing
        return cls(shards, held_out, config, *models, packing, pairs)

    def batches_from(self, step: int, run: PretrainRun, devices: Devices):
        """The training batches from a step on, with this process's rows."""
        phases = [(run.examples, run.steps - run.short_steps)]
        if run.short_steps:
            phases = [(run.examples_of(1), run.short_steps), *phases]
        parts = run.accumulate
        return phased_dataset(
            self.shards,
            [(examples, steps * parts) for examples, steps in phases],
            batch_size=run.batch_size // parts,
            seed=run.seed,
            start_step=step * parts,
            host_index=devices.index,
            host_count=devices.count,
        )

    def flops(self, examples: ExampleConfig) -> float:
        """Operations for a row: a training step, and the teacher's forward."""
        count = flops_per_example(self.config, examples)
        if self.teacher is not None:
            count += flops_per_example(self.teacher.config, examples) / TRAINING
        return count

    @functools.cached_property
    def model_checksums(self) -> dict[str, str]:
        """The checksums of the models that the run reads, by their options."""
        models = {"warm_start": self.source, "teacher": self.teacher}
        return {
            option: weights_checksum(model)
            for option, model in models.items()
            if model is not None
        }

    def held_out_batches(self, run: PretrainRun, **hosts: int):
        """The held-out batches; of one process where `hosts` names it."""
        if self.held_out is None:
            return None
        parts = run.accumulate
        batches = validation_dataset(
            self.held_out,
            run.examples.held_out(),
            batch_size=run.batch_size // parts,
            **hosts,
        )
        if run.validation_steps is None:
            return batches
        return batches.take(run.validation_steps * parts)


def _source_of(run: PretrainRun) -> AlbertModel | None:
    """The model that the weights start from; None without a warm start."""
    if run.warm_start is None:
        return None
    # Not at the top, as the readers of checkpoints import the heads of all
    # tasks, and most runs read none.
    from keras_albert.checkpoints.load import load

    return load(run.warm_start, dtype="float32")


def _teacher_of(
    run: PretrainRun, shards: ShardSet, devices: Devices
) -> AlbertModel | None:
    if run.teacher is None:
        return None
    if devices.replicas * devices.count * run.model_parallel > 1:
        raise AlbertError(
            "`teacher` works on one device. Received: "
            f"{devices.replicas} replicas in {devices.count} processes, "
            f"model_parallel={run.model_parallel}. Leave --teacher out, or "
            "start one process, with --distribution none and without "
            "--model-parallel."
        )
    return load_teacher(run, shards.tokenizer())


def _models_of(run: PretrainRun) -> Checksums:
    """The models that a run depends on, for `check_same_models`."""
    return {
        STARTED_FROM: (
            run.warm_start,
            lambda: weights_checksum(_source_of(run)),
        ),
        TAUGHT_BY: (
            run.teacher,
            lambda: weights_checksum(read_teacher(run)),
        ),
    }


def _config_of(
    run: PretrainRun, source: AlbertModel | None, shards: ShardSet
) -> AlbertConfig:
    if run.config:
        return AlbertConfig.from_json(run.config)
    if source and not run.variant:
        return source.config
    return SIZES[run.variant].replace(vocab_size=shards.vocab_size)


def _train(
    run: PretrainRun, inputs: _Inputs, folder: RunFolder, devices: Devices
) -> dict:
    # The seed is set before the model is made, as it decides its weights.
    keras.utils.set_random_seed(run.seed)
    model = _compiled_model(run, inputs, devices)
    checksums = {**_checksums(run), **inputs.model_checksums}
    # The folder is claimed only after the model could be made: a run that fails
    # before leaves nothing behind.
    folder.claim()
    # Peak speed of all devices, to which the log compares the run's speed.
    peak = matrix_product_peak(keras.DTypePolicy(run.precision).compute_dtype)
    peak *= devices.replicas * run.model_parallel

    # The work depends on the step, since the first phase may have shorter rows.
    def work_of(step: int, steps: int = run.steps_per_execution) -> Work:
        examples = run.examples_of(step)
        rows = steps * run.batch_size
        flops = rows * inputs.flops(examples)
        return Work(rows * examples.sequence_length, flops, peak)

    _describe(run, inputs, model.count_params(), work_of(run.steps, 1), devices)
    task = {"task": PRETRAINING, "examples": dataclasses.asdict(run.examples)}
    held_out = inputs.held_out_batches(
        run, host_index=devices.index, host_count=devices.count
    )
    training = Training(
        ModelFolder(model, inputs.shards.tokenizer(), task),
        run.output,
        lambda step: inputs.batches_from(step, run, devices),
        Timetable(
            steps=run.steps,
            validate_every=run.validate_every,
            checkpoint_every=run.checkpoint_every or run.validate_every,
            keep_checkpoints=run.keep_checkpoints,
            accumulate=run.accumulate,
        ),
        # Everything that a checkpoint must agree with to be continued.
        origin={
            "backend": keras.backend.backend(),
            "config": dataclasses.asdict(inputs.config),
            **checksums,
        },
        validate=held_out
        and (lambda stopped: _held_out(model, held_out, stopped, devices)),
        work_of=work_of,
        tensorboard=run.tensorboard,
        devices=devices,
    )
    kept, cost = fit_with_cost(training, lambda step: work_of(step, 1))
    # All processes have trained; only the first one writes the report, which
    # marks the run as finished.
    if not devices.is_first:
        return {}
    report = _report_of(run, inputs, model.count_params(), kept)
    report[STARTED_FROM] = checksums.get("warm_start")
    report[TAUGHT_BY] = checksums.get("teacher")
    report["cost"] = dataclasses.asdict(cost)
    write_report(run.output, report)
    print("\n".join(report_lines(report)))
    print(f"-> {run.output}")
    if run.optimizer.ema_momentum is not None:
        print(
            "the saved weights are moving averages, momentum "
            f"{run.optimizer.ema_momentum:g}"
        )
    return report


def _compiled_model(
    run: PretrainRun, inputs: _Inputs, devices: Devices
) -> AlbertForPretraining:
    rate = WarmupPolynomialDecay(
        run.optimizer.learning_rate, run.steps, run.warmup_steps
    )
    # Some devices average the gradients of the parts of a batch themselves.
    parts = 1 if devices.accumulates else run.accumulate
    with devices.scope():
        model = pretraining_model(
            inputs.config, run.examples, run.loop, run.remat, run.precision
        )
        fresh = inputs.source and warm_start(model, inputs.source)
        if fresh:
            print(f"{run.warm_start} has no weights for {', '.join(fresh)}")
        loss = None
        if inputs.teacher is not None:
            model.teacher = masked_logits_of(
                inputs.teacher, model.config.vocab_size
            )
            loss = MaskedLMDistillationLoss(run.teacher_share, run.temperature)
        compile_for_pretraining(
            model, make_optimizer(run.optimizer, rate, parts), loss
        )
    return model


def _report_of(
    run: PretrainRun, inputs: _Inputs, parameters: int, kept: LogRow
) -> dict:
    report = {
        MADE_OF: _checksums(run),
        "steps": run.steps,
        "kept_step": kept["step"],
        "rows_seen" if inputs.packing else "examples_seen": run.steps
        * run.batch_size,
        "parameters": parameters,
        "training_loss": kept["loss"],
        "tokens_per_second": kept["tokens_per_second"],
        "model_flops_utilization": kept["model_flops_utilization"],
        "ema_momentum": run.optimizer.ema_momentum,
    }
    if inputs.held_out is not None:
        names = (name for name in kept if name.startswith(HELD_OUT))
        measured = {name.removeprefix(HELD_OUT): kept[name] for name in names}
        # The rows of all processes, whichever of them evaluated a row.
        batches = inputs.held_out_batches(run)
        report["held_out"] = held_out_report(measured, batches)
    return report


def _checksums(run: PretrainRun) -> dict[str, str | None]:
    """SHA-256 of the manifests, which hold the checksums of the shards."""
    return {
        "data": checksum(run.data / MANIFEST_FILE),
        "validation": run.validation
        and checksum(run.validation / MANIFEST_FILE),
    }


def _check_fit(
    run: PretrainRun,
    config: AlbertConfig,
    shards: ShardSet,
    validation: ShardSet | None,
    source: AlbertModel | None,
) -> None:
    if config.vocab_size != shards.vocab_size:
        remedy = (
            f"Set `vocab_size` in {run.config}, or prepare with another "
            "vocabulary."
            if run.config
            else "Run `prepare` on the text with the vocabulary (the .model "
            f"file) of {run.warm_start}."
        )
        raise AlbertError(
            f"The model's vocab_size is {config.vocab_size}, the shards in "
            f"{run.data} were made with {shards.vocab_size} pieces. {remedy}"
        )
    check_examples(run.examples, config)
    vocabulary = shards.tokenizer()
    theirs = validation and validation.tokenizer()
    if theirs and (difference := theirs.difference_from(vocabulary)):
        raise AlbertError(
            f"{run.validation} was prepared with another vocabulary than "
            f"{run.data} ({difference}). Prepare both with the same one."
        )
    if validation:
        with errors_about(run.validation):
            check_documents(Corpus(validation), run.examples)
    theirs = source and source.tokenizer
    if theirs and (difference := theirs.difference_from(vocabulary)):
        raise AlbertError(
            f"{run.warm_start} has another vocabulary than {run.data} "
            f"({difference}): its embeddings would stand for other pieces. "
            "Prepare the text with its vocabulary."
        )


def _held_out(model, batches, stopped: Callable[[], bool], devices) -> LogRow:
    """See `Training.validate`; the loss is the sum of the cross-entropies.

    Keras's own is the mean over batches, in which the few examples of the last
    batch would count as much as those of all others.
    """
    measured = evaluate_until(model, batches, stopped, devices)
    parts = [measured[n] for n in measured if n.endswith("cross_entropy")]
    return {**measured, "loss": sum(parts)}


def learning_rate_advice(
    run: PretrainRun, config: AlbertConfig, packing: Packing | None = None
) -> str | None:
    """The rate of the square-root rule, if the batch is far from the paper's.

    Models much smaller than base learn with far higher ones: no advice.
    Source: with LAMB, the ratio of the rate to the square root of the batch
    is kept (You et al. 2020, arXiv:1904.00962, section 4).
    """
    is_small = config.hidden_size < VARIANTS["base_v2"].hidden_size
    examples = run.batch_size * (packing.examples_per_row if packing else 1)
    ratio = examples / PretrainRun.batch_size
    near = 1 / FAR_BATCH < ratio < FAR_BATCH
    if near or is_small or run.optimizer.optimizer != "lamb":
        return None
    rate, batch = OptimizerConfig.learning_rate, PretrainRun.batch_size
    return (
        f"learning rate {run.optimizer.learning_rate:g} for batches of "
        f"{examples:,.0f}; the square-root rule, from {rate:g} for "
        f"{batch:,}, gives --optimizer.learning-rate={rate * ratio**0.5:.3g}"
    )


def memory_advice(
    run: PretrainRun, config: AlbertConfig, replicas: int
) -> str | None:
    """What to do if the activations of a step may not fit; None if they do."""
    part = run.batch_size // run.accumulate, run.examples.sequence_length
    # The estimate is for float32, and serves for mixed precision, too: on a
    # GPU, ALBERT-base in bfloat16 with 32 x 512 tokens kept 13 GB on JAX, and
    # less than half of that on PyTorch.
    gigabytes = activation_bytes(config, *part) / replicas / 1e9
    if run.remat or gigabytes < MANY_GIGABYTES:
        return None
    return (
        f"a step keeps {gigabytes:,.0f} GB of activations on each device, and "
        "what the backend adds to them; if that is too much, give --remat, "
        "raise --accumulate, or lower --batch-size, and with its square root "
        "--optimizer.learning-rate"
    )


def _describe(
    run: PretrainRun,
    inputs: _Inputs,
    parameters: int,
    work: Work,
    devices: Devices,
) -> None:
    config, shards, packing = inputs.config, inputs.shards, inputs.packing
    lines = [
        f"{parameters:,} parameters, {config.num_hidden_layers} "
        f"layers of {config.hidden_size}; {shards.num_tokens:,} tokens in "
        f"{shards.num_documents:,} documents; {run.steps:,} steps of "
        f"{run.batch_size} x {run.examples.sequence_length} tokens"
        + (
            f", the first {run.short_steps:,} of {run.short_length}"
            if run.short_steps
            else ""
        )
        + f" on {backend_and_device()}"
        + (f", {devices.replicas} devices" if devices.replicas > 1 else ""),
        f"{work.flops / 1e9:,.4g} GFLOP a step; a large matrix product reaches "
        f"{work.peak / 1e9:,.3g} GFLOP/s in {run.precision} here",
    ]
    if packing:
        lines.append(
            f"rows of {packing.examples_per_row:.2f} examples on average; "
            f"{packing.fill:.1%} of their tokens are not padding"
        )
    if (share := inputs.share_of_pairs) is not None:
        others = ", the others are a single sentence" if share < 1 else ""
        lines.append(
            f"{share:.1%} of the examples count for the sentence task "
            f"{run.examples.sentence_task}{others}"
        )
        if share < FEW_PAIRS:
            length = run.examples.sequence_length
            lines.append(advice_on_pairs(inputs.shards, length))
    if advice := learning_rate_advice(run, config, packing):
        lines.append(advice)
    if advice := memory_advice(run, config, devices.replicas):
        lines.append(advice)
    print("\n".join(lines), flush=True)

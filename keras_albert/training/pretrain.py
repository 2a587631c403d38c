"""Pretraining: token shards -> a folder with a pretrained model."""

import dataclasses
import math

import keras
import numpy as np

from keras_albert.config import (
    VARIANTS,
    AlbertConfig,
    AlbertError,
    CompileRun,
    DeviceConfig,
    OptimizerConfig,
    PretrainRun,
)
from keras_albert.data.packing import Packing
from keras_albert.data.pretraining import (
    ExampleStream,
    phased_dataset,
    validation_dataset,
)
from keras_albert.data.shards import MANIFEST_FILE, ShardSet
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.masked_lm import AlbertForPretraining
from keras_albert.modeling.model import AlbertModel
from keras_albert.modeling.warm_start import warm_start
from keras_albert.storage import (
    checksum,
    claim_folder,
    holds_run,
    same_settings,
)
from keras_albert.training.curves import HELD_OUT, check_tensorboard
from keras_albert.training.devices import Devices
from keras_albert.training.distribution import leave_gpu_to_backend, opened
from keras_albert.training.fitting import (
    Timetable,
    evaluate_until,
    fit_into_folder,
)
from keras_albert.training.flops import (
    Work,
    flops_per_example,
    matrix_product_peak,
)
from keras_albert.training.folders import (
    MADE_OF,
    ModelFolder,
    check_made_of,
    finished_report,
    load,
    write_report,
)
from keras_albert.training.losses import WeightedCrossEntropy
from keras_albert.training.model_folder_checks import PRETRAINING
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.schedules import WarmupPolynomialDecay

MANY_GIGABYTES = 8  # of activations: worth a word before a run
# As a reader of the report knows them.
SENTENCE_TASK_NAMES = {"sop": "sentence-order", "nsp": "next-sentence"}
FAR_BATCH = 2  # times the paper's, or a part of it: worth a word, too


def pretrain(run: PretrainRun) -> dict:
    """Runs it, or goes on with it; returns and keeps the report.

    Of several processes the first one returns it.

    Raises:
        AlbertError: input that does not fit, before anything is written; or a
            loss that is not finite, the last good model being kept.
    """
    leave_gpu_to_backend()
    with opened(DeviceConfig.of(run), run.accumulate) as devices:
        devices.check_equal(same_settings(run))
        return _pretrain(run, devices)


def _finished(run: PretrainRun) -> dict | None:
    """The report of the same run, if it is done."""
    report = finished_report(run.output)
    if report:
        folders = [path for path in (run.data, run.validation) if path]
        check_made_of(run.output, report, folders, lambda: _checksums(run))
    return report


def _opened_data(run: PretrainRun, devices: Devices) -> tuple:
    """Shards, held-out shards, config, warm start; packing. All checked."""
    if run.tensorboard:
        check_tensorboard()
    devices.check_batch(run.batch_size, run.accumulate)
    shards = ShardSet.open(run.data)
    validation = run.validation and ShardSet.open(run.validation)
    for each in (shards, validation):
        if each:
            each.verify()
    config = (
        AlbertConfig.from_json(run.config)
        if run.config
        else VARIANTS[run.variant].replace(vocab_size=shards.vocab_size)
    )
    with devices.alone():
        source = run.warm_start and load(run.warm_start, dtype="float32")
    _check_fit(run, config, shards, validation, source)
    devices.check(config)
    # Before anything is written or measured; of each phase.
    for examples in dict.fromkeys((run.examples_of(1), run.examples)):
        stream = ExampleStream(shards, examples, run.seed)
        stream.check_pairs()
    return shards, validation, config, source, stream.packing


def _pretrain(run: PretrainRun, devices: Devices) -> dict:
    goes_on = devices.first(lambda: holds_run(run.output, run))
    report = devices.first(lambda: _finished(run))
    if report:
        print(f"{run.output} holds this run, and it is finished:")
        for line in report_lines(report):
            print(line)
        return report
    shards, validation, config, source, packing = devices.each(
        lambda: _opened_data(run, devices)
    )
    devices.check_equal(
        {
            "the config": dataclasses.asdict(config),
            **_checksums(run),
        }
    )
    tokenizer = shards.tokenizer()
    parts = run.accumulate
    mine = {"host_index": devices.index, "host_count": devices.count}

    def batches_from(step: int):
        phases = [(run.examples, run.steps - run.short_steps)]
        if run.short_steps:
            phases = [(run.examples_of(1), run.short_steps), *phases]
        return phased_dataset(
            shards,
            [(examples, steps * parts) for examples, steps in phases],
            batch_size=run.batch_size // parts,
            seed=run.seed,
            start_step=step * parts,
            **mine,
        )

    held_out = validation and validation_dataset(
        validation, run.examples, batch_size=run.batch_size // parts, **mine
    )
    counted = run.validation_steps and run.validation_steps * parts
    if held_out is not None and counted is not None:
        held_out = held_out.take(counted)
    keras.utils.set_random_seed(run.seed)
    with devices.scope():
        model = pretraining_model(run, config)
        if source and (fresh := warm_start(model, source)):
            print(f"{run.warm_start} has no weights for {', '.join(fresh)}")
        compile_for_pretraining(
            model,
            make_optimizer(
                run.optimizer,
                WarmupPolynomialDecay(
                    run.optimizer.learning_rate, run.steps, run.warmup_steps
                ),
                1 if devices.accumulates else parts,
            ),
        )
    output = run.output
    if not goes_on:
        devices.first(lambda: str(claim_folder(output, run)))
    peak = matrix_product_peak(keras.DTypePolicy(run.precision).compute_dtype)

    def work_of(step: int, steps: int = run.steps_per_execution) -> Work:
        examples = run.examples_of(step)
        rows = steps * run.batch_size
        return Work(
            tokens=rows * examples.sequence_length,
            flops=rows * flops_per_example(config, examples),
            peak=peak * devices.replicas * run.model_parallel,
        )

    _describe(
        run, config, model, shards, work_of(run.steps, 1), packing, devices
    )
    task = {
        "task": PRETRAINING,
        "examples": dataclasses.asdict(run.examples),
    }
    reached = fit_into_folder(
        ModelFolder(model, tokenizer, task),
        output,
        batches_from,
        Timetable(
            steps=run.steps,
            validate_every=run.validate_every,
            checkpoint_every=run.checkpoint_every or run.validate_every,
            keep_checkpoints=run.keep_checkpoints,
            accumulate=parts,
        ),
        origin={
            "backend": keras.backend.backend(),
            "config": dataclasses.asdict(config),
            **_checksums(run),
        },
        validate=held_out
        and (lambda stopped: evaluate_until(model, held_out, stopped, devices)),
        work_of=work_of,
        tensorboard=run.tensorboard,
        devices=devices,
    )
    if not devices.is_first:
        return {}
    report = {
        MADE_OF: _checksums(run),
        "steps": run.steps,
        "kept_step": reached["step"],
        "rows_seen" if packing else "examples_seen": run.steps * run.batch_size,
        "parameters": model.count_params(),
        "training_loss": reached["loss"],
        "tokens_per_second": reached["tokens_per_second"],
        "model_flops_utilization": reached["model_flops_utilization"],
        "ema_momentum": run.optimizer.ema_momentum,
    }
    if held_out is not None:
        report["held_out"] = held_out_report(
            {
                name.removeprefix(HELD_OUT): value
                for name, value in reached.items()
                if name.startswith(HELD_OUT)
            },
            # All rows of it, whoever evaluated them.
            validation_dataset(
                validation, run.examples, batch_size=run.batch_size // parts
            ).take(-1 if counted is None else counted),
        )
    write_report(output, report)
    for line in report_lines(report):
        print(line)
    print(f"-> {output}")
    if run.optimizer.ema_momentum is not None:
        print(
            "the saved weights are moving averages, momentum "
            f"{run.optimizer.ema_momentum:g}"
        )
    return report


def pretraining_model(
    run: PretrainRun | CompileRun, config: AlbertConfig
) -> AlbertForPretraining:
    """The model of a run, with fresh weights."""
    task = run.examples.sentence_task
    return AlbertForPretraining(
        AlbertBackbone(
            config, loop=run.loop, remat=run.remat, dtype=run.precision
        ),
        None if task == "none" else task,
    )


def compile_for_pretraining(
    model: AlbertForPretraining, optimizer: keras.optimizers.Optimizer | str
) -> None:
    """The published losses with equal weight, and their accuracies."""

    tasks = [task for task in ("mlm", model.sentence_task) if task]
    # Keras puts the name of an output before, where there are several.
    prefix = "mlm_" if len(tasks) == 1 else ""

    def metrics():
        # The cross-entropy over all predictions: the losses that Keras logs
        # are means over batches, however few predictions a batch has.
        return [
            keras.metrics.SparseCategoricalAccuracy(name=f"{prefix}accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(
                from_logits=True, name=f"{prefix}cross_entropy"
            ),
        ]

    model.compile(
        optimizer=optimizer,
        loss={task: WeightedCrossEntropy() for task in tasks},
        weighted_metrics={task: metrics() for task in tasks},
    )


def held_out_report(measured: dict, batches) -> dict:
    """Accuracies on held-out examples beside the best constant guess.

    Args:
        measured: accuracies and cross-entropies as `evaluate` names them.
        batches: the (x, y, sample_weight) that were evaluated.
    """
    labels: dict[str, list[np.ndarray]] = {}
    for _, y, weight in batches.as_numpy_iterator():
        for task in y:
            labels.setdefault(task, []).append(y[task][weight[task] > 0])
    report = {}
    for task, parts in labels.items():
        counted = np.concatenate(parts)
        report |= {
            f"{task}_loss": measured[f"{task}_cross_entropy"],
            f"{task}_accuracy": measured[f"{task}_accuracy"],
            f"{task}_baseline": _best_constant_guess(counted),
            f"{task}_count": len(counted),
        }
    return report


def _checksums(run: PretrainRun) -> dict[str, str | None]:
    """Of the manifests, which have those of the shards."""
    return {
        "data": checksum(run.data / MANIFEST_FILE),
        "validation": run.validation
        and checksum(run.validation / MANIFEST_FILE),
    }


def report_lines(report: dict, examples: str = "held-out ") -> list[str]:
    """The report for a reader, with what is known of the examples."""
    if "held_out" not in report:
        return [
            f"training loss {report['training_loss']:.3f}; nothing was held "
            "out (--validation)"
        ]
    held_out = report["held_out"]
    lines = [
        f"{examples}masked-LM accuracy      {held_out['mlm_accuracy']:.3f}  "
        f"(always the most frequent token: {held_out['mlm_baseline']:.3f}; "
        f"{held_out['mlm_count']:,} predictions)"
    ]
    for task, name in SENTENCE_TASK_NAMES.items():
        count = held_out.get(f"{task}_count")
        if count == 0:
            lines.append(f"{examples}{name}: no document has a pair")
        elif count:
            accuracy, guessing = (
                held_out[f"{task}_{each}"] for each in ("accuracy", "baseline")
            )
            chance = 1.96 * math.sqrt(guessing * (1 - guessing) / count)
            lines.append(
                f"{examples}{name} accuracy {accuracy:.3f}  (always the more "
                f"frequent answer: {guessing:.3f}, 95 % of such guessers "
                f"within +-{chance:.3f}; {count:,} pairs)"
            )
    steps = report.get("steps")  # of a run; `evaluate` has none
    kept = report.get("kept_step", steps)  # runs of old kept the last one
    if kept != steps:
        lines.append(
            f"all of it at step {kept:,} of "
            f"{steps:,}, whose held-out loss is the lowest: that "
            "model is kept"
        )
    return lines


def _best_constant_guess(labels: np.ndarray) -> float:
    return (
        float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0
    )


def _check_fit(
    run: PretrainRun,
    config: AlbertConfig,
    shards: ShardSet,
    validation: ShardSet | None,
    source: AlbertModel | None,
) -> None:
    if config.vocab_size != shards.vocab_size:
        raise AlbertError(
            f"The model's vocab_size is {config.vocab_size}, the shards in "
            f"{run.data} were made with {shards.vocab_size} pieces. Set "
            f"`vocab_size` in {run.config}, or prepare with another vocabulary."
        )
    check_examples(run, config)
    vocabulary = shards.tokenizer()
    if validation and (
        difference := validation.tokenizer().difference_from(vocabulary)
    ):
        raise AlbertError(
            f"{run.validation} was prepared with another vocabulary than "
            f"{run.data} ({difference}). Prepare both with the same one."
        )
    if (
        source
        and source.tokenizer
        and (difference := source.tokenizer.difference_from(vocabulary))
    ):
        raise AlbertError(
            f"{run.warm_start} has another vocabulary than {run.data} "
            f"({difference}): its embeddings would stand for other pieces. "
            "Prepare the text with its vocabulary."
        )


def check_examples(run: PretrainRun | CompileRun, config: AlbertConfig) -> None:
    """AlbertError unless the model takes the examples of a run."""
    if config.type_vocab_size < 2:
        raise AlbertError(
            "Pretraining has two segments: `type_vocab_size` must be 2 or "
            f"more. Received: {config.type_vocab_size}."
        )
    if run.examples.sequence_length > config.max_position_embeddings:
        raise AlbertError(
            "`sequence_length` must not exceed the model's "
            f"max_position_embeddings={config.max_position_embeddings}. "
            f"Received: {run.examples.sequence_length}. Set "
            "--examples.sequence-length."
        )


def learning_rate_advice(
    run: PretrainRun, config: AlbertConfig, packing: Packing | None = None
) -> str | None:
    """The rate of the square-root rule, if the batch is far from the paper's.

    Models much smaller than base learn with far higher ones: no advice.

    You et al. 2020 (arXiv:1904.00962), section 4: with LAMB, keep the ratio
    of the rate to the square root of the batch.
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


def _describe(run, config, model, shards, work, packing, devices) -> None:
    print(
        f"{model.count_params():,} parameters, {config.num_hidden_layers} "
        f"layers of {config.hidden_size}; {shards.num_tokens:,} tokens in "
        f"{shards.num_documents:,} documents; {run.steps:,} steps of "
        f"{run.batch_size} x {run.examples.sequence_length} tokens"
        + (
            f", the first {run.short_steps:,} of {run.short_length}"
            if run.short_steps
            else ""
        )
        + f" on {keras.backend.backend()}"
        + (f", {devices.replicas} devices" if devices.replicas > 1 else ""),
        flush=True,
    )
    print(
        f"{work.flops / 1e9:,.4g} GFLOP a step; a large matrix product reaches "
        f"{work.peak / 1e9:,.3g} GFLOP/s in {run.precision} here",
        flush=True,
    )
    if packing:
        print(
            f"rows of {packing.examples_per_row:.2f} examples on average; "
            f"{packing.fill:.1%} of their tokens are not padding",
            flush=True,
        )
    advice = learning_rate_advice(run, config, packing)
    if advice:
        print(advice, flush=True)
    gigabytes = _activation_bytes(run, config) / devices.replicas / 1e9
    if gigabytes > MANY_GIGABYTES:
        print(
            f"a step keeps roughly {gigabytes:,.0f} GB of activations on this "
            "device; if that is too much, raise --accumulate, or lower "
            "--batch-size, and --optimizer.learning-rate with its square root",
            flush=True,
        )


def _activation_bytes(run: PretrainRun, config: AlbertConfig) -> int:
    """What backpropagation keeps of the layers, float32, to one digit."""
    length = run.examples.sequence_length
    a_token = (
        10 * config.hidden_size
        + 3 * config.intermediate_size
        + 3 * config.num_attention_heads * length
    )
    tokens = run.batch_size // run.accumulate * length
    return 4 * tokens * a_token * config.num_hidden_layers

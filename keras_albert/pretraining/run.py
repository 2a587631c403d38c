"""Pretraining: token shards -> a folder with a pretrained model."""

import dataclasses

import keras

from keras_albert.checkpoints.load import load
from keras_albert.corpus.shards import MANIFEST_FILE, ShardSet
from keras_albert.distribution.backend import leave_gpu_to_backend, opened
from keras_albert.distribution.devices import Devices
from keras_albert.errors import AlbertError
from keras_albert.modeling.base import AlbertModel
from keras_albert.modeling.config import VARIANTS, AlbertConfig
from keras_albert.modeling.warm_start import warm_start
from keras_albert.pretraining.config import PretrainRun
from keras_albert.pretraining.dataset import (
    ExampleStream,
    phased_dataset,
    validation_dataset,
)
from keras_albert.pretraining.flops import flops_per_example
from keras_albert.pretraining.model import (
    check_examples,
    compile_for_pretraining,
    pretraining_model,
)
from keras_albert.pretraining.packing import Packing
from keras_albert.pretraining.report import held_out_report, report_lines
from keras_albert.storage import checksum
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.loop import (
    Timetable,
    evaluate_until,
    fit_into_folder,
)
from keras_albert.training.model_folder import PRETRAINING, ModelFolder
from keras_albert.training.optimizer import make_optimizer
from keras_albert.training.run_folder import (
    MADE_OF,
    check_made_of,
    claim_folder,
    finished_report,
    holds_run,
    same_settings,
    write_report,
)
from keras_albert.training.run_log import HELD_OUT, check_tensorboard
from keras_albert.training.schedules import WarmupPolynomialDecay
from keras_albert.training.speed import Work, matrix_product_peak

MANY_GIGABYTES = 8  # of activations: worth a word before a run


FAR_BATCH = 2  # times the paper's, or a part of it: worth a word, too


def pretrain(run: PretrainRun) -> dict:
    """Runs it, or goes on with it; returns and keeps the report.

    Of several processes the first one returns it.

    Raises:
        AlbertError: input that does not fit, before anything is written; or a
            loss that is not finite, the last good model being kept.
    """
    leave_gpu_to_backend()
    with opened(run.devices, run.accumulate) as devices:
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
        model = pretraining_model(
            config, run.examples, run.loop, run.remat, run.precision
        )
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


def _checksums(run: PretrainRun) -> dict[str, str | None]:
    """Of the manifests, which have those of the shards."""
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
        raise AlbertError(
            f"The model's vocab_size is {config.vocab_size}, the shards in "
            f"{run.data} were made with {shards.vocab_size} pieces. Set "
            f"`vocab_size` in {run.config}, or prepare with another vocabulary."
        )
    check_examples(run.examples, config)
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

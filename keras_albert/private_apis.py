"""Every use of a private API of Keras, JAX, PyTorch or TensorFlow.

Private APIs may change with any release. Each docstring here says in which
version the API was last seen, and why no public one serves. When a new release
of a framework breaks something, look here first. tests/unit/
test_private_apis.py refuses private APIs anywhere else in the package.

JAX, PyTorch and TensorFlow are imported inside the functions that need them.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

# Keras: models and layers.


def sublayers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """All layers inside a layer or model, at any depth, without itself.

    Uses: `Layer._flatten_layers`.
    Seen in: Keras 3.15.1.
    No public way: `Model.layers` lists only the outermost layers.
    """
    return list(model._flatten_layers(include_self=False))


def is_placeholder(x: Any) -> bool:
    """Whether Keras may have made up an input of a model inside another one.

    It takes floats for all inputs when it computes the shapes of a model that
    it loads, and when it traces one for a SavedModel (a graph of TensorFlow).

    Uses: `keras.src.backend.common.symbolic_scope.in_symbolic_scope`,
    `keras.src.backend.common.global_state`.
    Seen in: Keras 3.15.1.
    No public way: `keras.SymbolicScope` is public, and nothing that asks
    whether one is open, or whether a layer is called by another one.
    """
    from keras.src.backend.common import global_state, symbolic_scope

    if symbolic_scope.in_symbolic_scope():
        return True
    is_inside = global_state.get_global_attribute("current_call_ctx")
    return is_inside is not None and hasattr(x, "graph")


def track_in_checkpoints(
    layer: keras.layers.Layer, children: Mapping[str, keras.layers.Layer]
) -> None:
    """Puts layers that are in a list or dict into checkpoints of TensorFlow.

    `children` are these layers, by names of their own within `layer`.

    `tf.train.Checkpoint` would leave their weights out without a word. Files of
    Keras have them in any case.

    Uses: `tf.Module._track_trackable`.
    Seen in: Keras 3.15.1.
    No public way: Keras tracks lists and dicts for its own files alone.
    """
    if keras.backend.backend() == "tensorflow":
        for name, child in children.items():
            layer._track_trackable(child, name=name)


def adapted_kernel(dense: keras.layers.Dense) -> Any:
    """The kernel of a projection with its LoRA adapters added: [I, O].

    Uses: `Dense._kernel`.
    Seen in: Keras 3.15.1.
    No public way: `Dense.kernel` multiplies the adapters in the dtype that the
    layer computes in. oneDNN computes the products of adapters of rank 1 in
    bfloat16, and confuses them with other products (see tests/onednn.py).
    """
    a, b = (
        keras.ops.cast(weight, "float32")
        for weight in (dense.lora_kernel_a, dense.lora_kernel_b)
    )
    scale = dense.lora_alpha / dense.lora_rank
    kernel = keras.ops.cast(dense._kernel, "float32")
    return kernel + scale * keras.ops.matmul(a, b)


def track_parameters(model: keras.layers.Layer) -> None:
    """Makes variables that were added after the build parameters of PyTorch.

    Without it `model.parameters()` lacks them, and DistributedDataParallel does
    not average their gradients. Other backends have no such list.

    Uses: `TorchLayer._track_variables`.
    Seen in: Keras 3.15.1.
    No public way: a layer lists the variables of all layers inside it when it
    is built, and never again.
    """
    if keras.backend.backend() == "torch":
        for layer in [model, *sublayers(model)]:
            layer._track_variables()


def seed_generators(
    model: keras.layers.Layer,
) -> Iterator[keras.random.SeedGenerator]:
    """The seed generators of a model and of all layers inside it.

    Uses: `Layer._seed_generators`.
    Seen in: Keras 3.15.1.
    No public way: a layer shows the states of its generators as variables,
    but not the generators, whose method `next` `vary_seeds` replaces.
    """
    for layer in [model, *sublayers(model)]:
        yield from layer._seed_generators


@contextlib.contextmanager
def uncast_values() -> Iterator[None]:
    """Context manager in which Keras does not cast variables.

    Otherwise a layer of mixed precision reads them in its compute dtype.

    Uses: `keras.src.backend.common.variables.AutocastScope`.
    Seen in: Keras 3.15.1.
    No public way: a layer has the argument `autocast`, for all that it calls.
    """
    from keras.src.backend.common.variables import AutocastScope

    with AutocastScope(None):
        yield


class DrawnSeed(keras.random.SeedGenerator):
    """A seed that was drawn earlier, where Keras asks for a generator.

    Args:
        seed: tensor of two integers, as `SeedGenerator.next` gives it.

    Uses: `SeedGenerator._initial_seed`; does not call the constructor of
        `SeedGenerator`, which would make a variable.
    Seen in: Keras 3.15.1.
    No public way: `keras.random.dropout` takes an integer or a generator, not
    a tensor.
    """

    def __init__(self, seed):
        self._seed = seed
        # On PyTorch, dropout ignores a generator for which this is None.
        self._initial_seed = 0

    def next(self, ordered=True):
        """The seed, the same one at every call."""
        return self._seed


def build_for_batch(model: keras.Model, batch) -> None:
    """Builds a compiled model, its metrics and its optimizer, as `fit` does.

    Args:
        batch: (x, y, sample_weight), of keras.KerasTensor.

    Uses: `Model._symbolic_build`.
    Seen in: Keras 3.15.1.
    No public way: `Model.build` builds neither metrics nor optimizer.
    """
    model._symbolic_build(data_batch=batch)


def skip_build_in_fit(model: keras.Model) -> None:
    """Keeps `fit` and `evaluate` from building a model that is built already.

    They would take a batch from the dataset for it, which fails under a
    distribution strategy: Keras averages the replicas' parts of the batch,
    and token ids have no mean.

    Uses: `Model._maybe_symbolic_build` (TensorFlow backend).
    Seen in: Keras 3.15.1.
    No public way: `fit` calls it each time, and checks `built` only inside.
    """
    model._maybe_symbolic_build = lambda **_: None


def allow_strings(layer: keras.layers.Layer) -> None:
    """Lets a layer take strings, for which only TensorFlow has tensors.

    Uses: `Layer._convert_input_args`,
        `Layer._allow_non_tensor_positional_args`.
    Seen in: Keras 3.15.1.
    No public way: Keras converts the arguments of every layer to tensors of
        the backend, and JAX and PyTorch have no string tensors.
    """
    layer._convert_input_args = False
    layer._allow_non_tensor_positional_args = True


@contextlib.contextmanager
def own_keras_random() -> Iterator[None]:
    """Context manager after which `keras.random` goes on as before it.

    `keras.utils.set_random_seed` removes the generator from which
    `keras.random` draws, and the next one begins with the seed.

    Uses: `keras.src.backend.common.global_state`, `keras.src.random.
    seed_generator`, `keras.src.utils.rng_utils`.
    Seen in: Keras 3.15.1.
    No public way: the generator and the seed can be set, and not read.
    """
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

    names = GLOBAL_SEED_GENERATOR, GLOBAL_RANDOM_SEED
    before = {n: global_state.get_global_attribute(n) for n in names}
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


# Keras: the optimizer.


class OptimizerHooks(keras.optimizers.Optimizer):
    """`keras.optimizers.Optimizer` with public names for its private hooks.

    A subclass overrides `learning_rate_now`, `update_averages`, `clip` and
    `sum_over_replicas`, which Keras calls while it applies gradients, and may
    call the versions here, which are Keras's own.

    Uses: `Optimizer._get_current_learning_rate`, `._learning_rate`,
        `._iterations`, `._update_model_variables_moving_average`,
        `._model_variables_moving_average`, `._clip_gradients`,
        `._all_reduce_sum_gradients` (TensorFlow backend),
        `._get_variable_index`.
    Seen in: Keras 3.15.1.
    No public way: apart from `update_step`, Keras offers no method to override
    and no access to the schedule, the averages or a variable's index.
    """

    @property
    def rate_or_schedule(self) -> Any:
        """The learning rate's variable, or the schedule that computes it."""
        return self._learning_rate

    @property
    def calls(self) -> keras.Variable:
        """Number of calls of `apply`.

        With gradient accumulation, `iterations` counts only the updates.
        """
        return self._iterations

    @property
    def moving_averages(self) -> list[keras.Variable]:
        """Moving averages of the trainable variables; only with `use_ema`."""
        return self._model_variables_moving_average

    def index_of(self, variable: keras.Variable) -> int:
        """Position of a variable among those that the optimizer updates."""
        return self._get_variable_index(variable)

    def learning_rate_now(self) -> Any:
        """The learning rate of the next update."""
        return super()._get_current_learning_rate()

    def update_averages(
        self, trainable_variables: list[keras.Variable]
    ) -> None:
        """Updates `moving_averages` after a call of `apply`."""
        super()._update_model_variables_moving_average(trainable_variables)

    def clip(self, gradients: list[Any]) -> list[Any]:
        """Clips the gradients of a replica, before replicas are summed.

        On TensorFlow Keras cannot clip gradients of several dtypes at once.
        """
        dtypes = [keras.backend.standardize_dtype(g.dtype) for g in gradients]
        if len(set(dtypes)) < 2:
            return super()._clip_gradients(gradients)
        widest = keras.backend.result_type(*dtypes)
        clipped = super()._clip_gradients(
            [keras.ops.cast(gradient, widest) for gradient in gradients]
        )
        return [*map(keras.ops.cast, clipped, dtypes)]

    def sum_over_replicas(
        self, gradients_and_variables: list[tuple[Any, keras.Variable]]
    ) -> list[tuple[Any, keras.Variable]]:
        """Sums gradients over the replicas of tf.distribute.

        Keras calls it on the TensorFlow backend only.
        """
        return super()._all_reduce_sum_gradients(gradients_and_variables)

    def _get_current_learning_rate(self):
        return self.learning_rate_now()

    def _update_model_variables_moving_average(self, trainable_variables):
        self.update_averages(trainable_variables)

    def _clip_gradients(self, grads):
        return self.clip(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return self.sum_over_replicas(grads_and_vars)


# JAX.


def jax_key_value_service():
    """The client of JAX's coordination service; None in a single process.

    Its methods: `key_value_set`, `key_value_try_get`,
    `blocking_key_value_get`.

    Uses: `jax._src.distributed.global_state.client`.
    Seen in: jax 0.10.2. Orbax reads it from the same place.
    No public way: `jax.distributed` starts and ends the service, and
    collective operations can exchange arrays, but not wait with a time limit.
    """
    from jax._src import distributed

    return distributed.global_state.client


def is_tpu_pod() -> bool:
    """Whether this is one of several hosts of a Cloud TPU slice.

    JAX asks environment variables of GKE, or the metadata server of a VM.

    Uses: `jax._src.clusters.cloud_tpu_cluster`.
    Seen in: jax 0.10.2.
    No public way: `jax.distributed.initialize` uses the same functions, but
    fails if there is no cluster, and JAX cannot run in one process after that.
    """
    from jax._src.clusters import cloud_tpu_cluster as tpu

    clusters = (tpu.GceTpuCluster, tpu.GkeTpuCluster)
    return any(
        each.is_env_present() and each.get_process_count() > 1
        for each in clusters
    )


class KeepsJaxState:
    """Base of a keras.Model that keeps its weights when a batch fails on JAX.

    On JAX, `fit`, `evaluate` and `predict` move the weights out of the model,
    into the arguments of a compiled step. When a step fails, the weights can be
    restored from `_jax_state`, but Keras only sets it after the first step. An
    error in the first batch would leave a model without weights. This class
    sets `_jax_state` when the weights are moved.

    Uses: `JAXTrainer._get_jax_state`, `JAXTrainer._jax_state`.
    Seen in: Keras 3.15.1.
    No public way: `jax_state_sync` reads `_jax_state`, and nothing sets it
        before the first step.
    """

    # The order in which `_get_jax_state` of Keras returns the groups.
    _STATE = (
        "trainable_variables",
        "non_trainable_variables",
        "optimizer_variables",
        "metrics_variables",
    )

    def _get_jax_state(self, **wanted):
        state = super()._get_jax_state(**wanted)
        # `predict_on_batch` and its like leave the weights in the model. If one
        # of them failed, a state kept here would overwrite weights set later.
        self._jax_state = None
        if wanted.get("purge_model_variables"):
            names = [name for name in self._STATE if wanted.get(name)]
            self._jax_state = dict(zip(names, state, strict=True))
        return state


# PyTorch.


def without_iterator(loader):
    """A copy of a DataLoader that does not share the workers of the original.

    Uses: `DataLoader._iterator`.
    Seen in: PyTorch 2.13.0.
    No public way: with `persistent_workers` a copy would read from the
        iterator of the original, and a new DataLoader needs arguments that
        cannot be read from the original.
    """
    clone = copy.copy(loader)
    clone._iterator = None
    return clone


def onednn_linear() -> Callable | None:
    """oneDNN's activation(x W^T + b); None if this PyTorch has no oneDNN.

    The arguments of the result: x [N, I], W [O, I], b [O] or None, and the
    name of the activation ("none") with its numbers and its form.

    Uses: `torch.ops.mkldnn._linear_pointwise`.
    Seen in: PyTorch 2.13.0.
    No public way: on x86 processors `torch.nn.functional.linear` computes
        float32 with MKL. `torch.compile` uses this operation if it is told to
        freeze the weights, but needs a C++ compiler.
    """
    import torch

    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


# TensorFlow.


@contextlib.contextmanager
def without_retracing_warnings() -> Iterator[None]:
    """Context manager in which TensorFlow does not warn of traced functions.

    Texts have many lengths, and the last batch few rows. TensorFlow traces a
    model for the first few shapes, then once for all, and takes that for a
    mistake in the program.

    Uses: `triggered tf.function retracing`, a part of a warning's text.
    Seen in: TensorFlow 2.21.0.
    No public way: warnings of this kind have no switch of their own.
    """

    def is_other(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()

    logger = logging.getLogger("tensorflow")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def keep_vocabulary(tokenizer: Any, model: bytes, name: str) -> None:
    """Makes the vocabulary of a SentencepieceTokenizer stay in the process.

    By itself it belongs to a kernel in TensorFlow's cache, which
    `keras.utils.set_random_seed` clears: after that, graphs that were traced
    before do not find it any more. With a name it belongs to no kernel.
    `model` is the content of the .model file; each needs its own `name`.

    Uses: `SentencepieceTokenizer._model_resource`, and its operation.
    Seen in: TensorFlow 2.21.0.
    No public way: the class does not take the name of the resource.
    """
    import tensorflow as tf
    from tensorflow_text.python.ops import sentencepiece_tokenizer

    operations = sentencepiece_tokenizer.gen_sentencepiece_tokenizer

    class Vocabulary(tf.saved_model.experimental.TrackableResource):
        """The resource; a SavedModel makes it again when it is loaded."""

        def _create_resource(self):
            return operations.sentencepiece_op(model=model, shared_name=name)

    tokenizer._model_resource = Vocabulary()
    # Made here: if it were made when it is first used, and that is while a
    # graph is traced, it would belong to this graph alone.
    with tf.init_scope():
        _ = tokenizer._model_resource.resource_handle


def new_collective_keys() -> None:
    """Gives the next MirroredStrategy of this process keys of its own.

    TensorFlow numbers the exchanges between devices from the same start for
    every strategy, and remembers the shapes of each number: a second run in a
    process fails with "Shape mismatch in the collective instance" where its
    shapes differ from those of the first.

    Uses: `MirroredStrategy._collective_key_base`.
    Seen in: TensorFlow 2.21.0.
    No public way: the start of the numbers is no argument. TensorFlow's own
        tests raise it for each strategy.
    """
    import tensorflow as tf

    tf.distribute.MirroredStrategy._collective_key_base += 100_000


def configure_coordination_service(
    jobs: dict[str, int], heartbeat_seconds: int
) -> None:
    """Sets after how many seconds without a heartbeat a worker counts as lost.

    This must be called before MultiWorkerMirroredStrategy is created, which
    would configure the same service with its own limit.

    Args:
        jobs: number of tasks of each job, by its name; the first task of the
            first job is the leader of the service.
        heartbeat_seconds: the limit.

    Uses: `tensorflow.python.eager.context`.
    Seen in: TensorFlow 2.21.0.
    No public way: MultiWorkerMirroredStrategy sets no such limit.
    """
    from tensorflow.python.eager import context

    leader = next(iter(jobs))
    context.context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        heartbeat_timeout_in_ms=1000 * heartbeat_seconds,
        coordinated_jobs=[
            context.coordination_config_pb2.CoordinatedJob(
                name=name, num_tasks=count
            )
            for name, count in jobs.items()
        ],
    )

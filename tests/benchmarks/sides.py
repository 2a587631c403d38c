"""The contestants: ours, KerasHub and transformers, each behind one `Side`.

All take NumPy arrays and return NumPy arrays, so a call has waited for its
result and both conversions are in the time, of both sides. Models have random
weights. Keras reads KERAS_BACKEND; the backend of all but transformers.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable

import keras
import numpy as np
from keras import layers, ops
from workload import FORWARD, LEARNING_RATE, OPTIMIZER, Facts, Workload

import keras_albert as ka
from keras_albert.checkpoints.huggingface_config import CONFIG_FIELDS
from keras_albert.modeling.config import LAYER_NORM_EPSILON
from keras_albert.modeling.layers import initializer
from keras_albert.training.losses import MASKED_LM_LOSS_EPSILON

KERAS_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


@dataclasses.dataclass
class Side:
    """Something to time, with what it says of itself."""

    call: Callable[[], object]
    facts: Facts
    how: dict
    """what its owner chose and we left alone"""


def make_side(name: str, mode: str, dtype: str, workload: Workload) -> Side:
    """A side by its name in `SIDES`, ready to be warmed up."""
    return SIDES[name](mode, dtype, workload)


def matrix_product(name: str, dtype: str) -> Callable[[], object]:
    """One product of a feed-forward layer of ALBERT-base, as a side has it."""
    rows = np.ones((2, 128, 768), "float32")
    if name == "transformers":
        import torch

        dense = torch.nn.Linear(768, 3072).to(_torch_device())

        def call():
            with torch.inference_mode(), _autocast(dtype):
                return dense(_tensor(rows)).cpu()

        return call
    with _keras_policy(dtype):
        model = keras.Sequential([keras.Input((128, 768)), layers.Dense(3072)])
    return lambda: model.predict_on_batch(rows)


def _ours(mode: str, dtype: str, workload: Workload) -> Side:
    with _keras_policy(dtype):
        backbone = ka.AlbertBackbone(workload.config)
        model = (
            backbone if mode == FORWARD else ka.AlbertForPretraining(backbone)
        )
    config = backbone.config
    sizes = {"layers": config.num_hidden_layers}
    sizes["heads"] = config.num_attention_heads
    return _keras_side(model, mode, workload, **sizes)


def _keras_hub(mode: str, dtype: str, workload: Workload) -> Side:
    import keras_hub

    config = workload.config
    with _keras_policy(dtype):
        backbone = keras_hub.models.AlbertBackbone(
            vocabulary_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            embedding_dim=config.embedding_size,
            hidden_dim=config.hidden_size,
            intermediate_dim=config.intermediate_size,
            num_groups=config.num_hidden_groups,
            num_inner_repetitions=config.inner_group_num,
            dropout=config.hidden_dropout_prob,
            max_sequence_length=config.max_position_embeddings,
            num_segments=config.type_vocab_size,
        )
        model = backbone
        if mode != FORWARD:
            model = _KerasHubForPretraining(backbone, config)
    sizes = {"layers": backbone.num_layers, "heads": backbone.num_heads}
    return _keras_side(model, mode, workload, **sizes)


class _KerasHubForPretraining(keras.Model):
    """KerasHub's encoder and masked-LM head; sentence order it has none.

    Settings of the head as in its own `AlbertMaskedLM`.
    """

    def __init__(self, backbone, config: ka.AlbertConfig):
        import keras_hub

        super().__init__(name="keras_hub_for_pretraining")
        self.backbone = backbone
        self.masked_lm = keras_hub.layers.MaskedLMHead(
            vocabulary_size=config.vocab_size,
            token_embedding=backbone.token_embedding,
            intermediate_activation=lambda x: ops.gelu(x, approximate=True),
            kernel_initializer=initializer(config),
        )
        self.sentence_order = layers.Dense(
            2, kernel_initializer=initializer(config)
        )

    def build(self, input_shape=None):
        hidden = self.backbone.hidden_dim
        self.masked_lm.build((None, None, hidden))
        self.sentence_order.build((None, hidden))
        self.built = True

    def call(self, inputs, training=None):
        names = ("token_ids", "segment_ids", "padding_mask")
        outputs = self.backbone(
            {name: inputs[name] for name in names}, training=training
        )
        mlm = self.masked_lm(
            outputs["sequence_output"], inputs["masked_positions"]
        )  # [B, P, V]
        sop = self.sentence_order(outputs["pooled_output"])
        logits = {"mlm": mlm, "sop": sop}
        return {k: ops.cast(v, "float32") for k, v in logits.items()}


@contextlib.contextmanager
def _keras_policy(dtype: str):
    """The global policy while a model is made, as a user sets it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(KERAS_POLICIES[dtype])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _keras_side(
    model: keras.Model, mode: str, workload: Workload, **sizes: int
) -> Side:
    """`predict_on_batch` or `train_on_batch` of a Keras model."""
    first_loss = optimizer = None
    if mode == FORWARD:
        x = workload.inputs()
        call = functools.partial(model.predict_on_batch, x)
        outputs = call()
    else:
        x, y, weight = workload.training_batch()
        optimizer = getattr(keras.optimizers, OPTIMIZER)(LEARNING_RATE)
        model.compile(
            optimizer=optimizer,
            loss={
                "mlm": ka.WeightedCrossEntropy(),
                "sop": ka.WeightedCrossEntropy(),
            },
        )
        outputs = model.predict_on_batch(x)

        def call():
            # The sum of both losses; Keras puts the parts behind it.
            losses = model.train_on_batch(x, y, sample_weight=weight)
            return finite(np.ravel(losses)[0])

        first_loss = call()  # Keras returns the mean of all calls so far
    facts = _facts(
        x,
        outputs,
        model.trainable_weights,
        optimizer=optimizer and type(optimizer).__name__,
        learning_rate=optimizer and round(float(optimizer.learning_rate), 9),
        first_loss=first_loss,
        **sizes,
    )
    compiled, policy = bool(model.jit_compile), model.dtype_policy.name
    return Side(call, facts, {"jit_compile": compiled, "policy": policy})


def _facts(x: dict, outputs: dict, weights, **more) -> Facts:
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    return Facts(
        token_shape=x["token_ids"].shape,
        real_tokens=int(x["padding_mask"].sum()),
        weight_sizes=tuple(sorted(math.prod(w.shape) for w in weights)),
        output_shapes=tuple(sorted(shapes.items())),
        **more,
    )


def _transformers(mode: str, dtype: str, workload: Workload) -> Side:
    """Eager torch, sdpa, autocast for bfloat16: as its users run it."""
    import torch
    import transformers

    config = workload.config
    whole = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(
            **{name: getattr(config, name) for name in CONFIG_FIELDS},
            hidden_act="gelu_new",  # as its albert-base-v2 has; the tanh form
            layer_norm_eps=LAYER_NORM_EPSILON,
            classifier_dropout_prob=0.0,  # the reference's heads have none
            num_labels=2,
        )
    ).to(_torch_device())
    encoder = whole.albert
    autocast = _autocast(dtype)

    def encode(x):
        return encoder(
            input_ids=_tensor(x["token_ids"]),
            token_type_ids=_tensor(x["segment_ids"]),
            attention_mask=_tensor(x["padding_mask"]),
        )

    def logits_of(x):
        # Its own call predicts at every position: here at the masked ones.
        outputs = encode(x)
        positions = _tensor(x["masked_positions"]).long()
        hidden = torch.take_along_dim(
            outputs.last_hidden_state, positions.unsqueeze(2), 1
        )  # [B, P, H]
        return {
            "mlm": whole.predictions(hidden).float(),
            "sop": whole.sop_classifier(outputs.pooler_output).float(),
        }

    first_loss = optimizer = None
    if mode == FORWARD:
        x = workload.inputs()
        model = encoder.eval()

        def call():
            with torch.inference_mode(), autocast:
                outputs = encode(x)
            found = {
                "sequence_output": outputs.last_hidden_state,
                "pooled_output": outputs.pooler_output,
            }
            return {k: v.float().cpu().numpy() for k, v in found.items()}

        outputs = call()
    else:
        x, y, weight = workload.training_batch()
        model = whole.train()
        optimizer = getattr(torch.optim, OPTIMIZER)(
            model.parameters(), LEARNING_RATE
        )

        def call():
            optimizer.zero_grad()
            with autocast:
                logits = logits_of(x)
            # WeightedCrossEntropy, in torch.
            loss = 0.0
            for name, labels in y.items():
                each = torch.nn.functional.cross_entropy(
                    logits[name].flatten(0, -2),
                    _tensor(labels).long().flatten(),
                    reduction="none",
                )
                w = _tensor(weight[name]).flatten()
                loss = loss + (w * each).sum() / (
                    w.sum() + MASKED_LM_LOSS_EPSILON
                )
            loss.backward()
            optimizer.step()
            return finite(loss.item())

        with torch.inference_mode(), autocast:
            outputs = logits_of(x)
        first_loss = call()
    facts = _facts(
        x,
        outputs,
        model.parameters(),
        layers=encoder.config.num_hidden_layers,
        heads=encoder.config.num_attention_heads,
        optimizer=optimizer and type(optimizer).__name__,
        learning_rate=optimizer and optimizer.param_groups[0]["lr"],
        first_loss=first_loss,
    )
    attention = encoder.config._attn_implementation
    return Side(call, facts, {"attention": attention, "autocast": dtype})


def _autocast(dtype: str):
    import torch

    return torch.autocast(
        _torch_device(), torch.bfloat16, enabled=dtype == "bfloat16"
    )


def _tensor(array: np.ndarray):
    import torch

    return torch.from_numpy(array).to(_torch_device())


def _torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class PeakMemory:
    """Bytes of a GPU that were taken at once since this was made.

    Args:
        library: "tensorflow", "jax" or "torch".
    """

    def __init__(self, library: str):
        self._library = library
        if library == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
        self._before = self._read()

    def read(self) -> int | None:
        """None without a GPU, and where an earlier peak hides this one."""
        before, peak_before = self._before
        _, peak = self._read()
        return None if peak == peak_before else peak - before

    def _read(self) -> tuple[int, int]:
        """Bytes that are taken, and the most so far; 0 without a GPU."""
        if self._library == "torch":
            import torch

            gpu = torch.cuda
            return gpu.memory_allocated(), gpu.max_memory_allocated()
        if self._library == "jax":
            import jax

            found = jax.devices()[0].memory_stats() or {}
            return found.get("bytes_in_use", 0), found.get(
                "peak_bytes_in_use", 0
            )
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            return 0, 0
        found = tf.config.experimental.get_memory_info("GPU:0")
        return found["current"], found["peak"]


def device_name() -> str:
    """Of what the backend of Keras computes on: "cpu", or a GPU's name."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        on_gpu = torch.cuda.is_available()
        return torch.cuda.get_device_name() if on_gpu else "cpu"
    if backend == "jax":
        import jax

        return jax.devices()[0].device_kind
    import tensorflow as tf

    found = tf.config.list_physical_devices("GPU")
    if not found:
        return "cpu"
    return tf.config.experimental.get_device_details(found[0])["device_name"]


SIDES = {"ours": _ours, "keras_hub": _keras_hub, "transformers": _transformers}


def finite(loss) -> float:
    if not np.isfinite(loss):
        raise ka.AlbertError(f"the loss must be finite. Received: {loss}.")
    return float(loss)

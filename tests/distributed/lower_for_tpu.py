"""Lowers the training step with TensorFlow's own TPU kernels, without a TPU.

For TensorFlow as tpu/requirements-tf.txt installs it: no other has the kernels.
They take no variables, so the step is made pure: each variable is an argument
and a result. What TPUStrategy adds to it is in `trace_tpu_strategy.py`.

    python lower_for_tpu.py [dropout] [dtype policy]

Prints what the program takes and returns, and the floating-point operations of
its matrix products, as JSON.
"""

import collections
import json
import math
import os
import re
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from keras import tree
from trace_tpu_strategy import CONFIG, ROWS, dataset

import keras_albert as ka
from keras_albert.pretraining.model import compile_for_pretraining
from keras_albert.private_apis import OptimizerHooks, build_for_batch

_TYPE = r"(\w+)\[([\d,]*)\]"
_DOT = re.compile(
    rf"= {_TYPE}\S* dot\({_TYPE}.*lhs_contracting_dims={{([\d,]*)}}"
)
_HOST = r"custom-call|infeed|outfeed|send|recv"


class PureLamb(ka.Lamb):
    """Assigns through `keras.StatelessScope`, which TensorFlow's do not."""

    def assign(self, variable, value):
        variable.assign(value)

    def assign_sub(self, variable, value):
        variable.assign_sub(value)

    def index_of(self, variable):
        return [v is variable for v in self._trainable_variables].index(True)

    def step(self, gradients) -> None:
        """All of `apply`, but for the replicas."""
        variables = self._trainable_variables
        rate = self.learning_rate
        for gradient, variable in zip(
            OptimizerHooks.clip(self, gradients), variables, strict=True
        ):
            self.update_step(gradient, variable, rate)
        self._iterations.assign_add(1)


def pure_step(model: keras.Model, data):
    """(function of variables' values and a batch, its arguments)."""
    trainable = model.trainable_variables
    variables = [
        *trainable,
        *model.non_trainable_variables,
        *model.optimizer.variables,
        *model.metrics_variables,
    ]

    def now(scope, value, variable):
        found = scope.get_current_value(variable)
        return value if found is None else found

    def step(values, x, y, sample_weight):
        weights = values[: len(trainable)]
        state = list(zip(variables, values, strict=True))
        with (
            tf.GradientTape() as tape,
            keras.StatelessScope(state_mapping=state) as scope,
        ):
            tape.watch(weights)
            y_pred = model(x, training=True)
            loss = model.compute_loss(
                x=x,
                y=y,
                y_pred=y_pred,
                sample_weight=sample_weight,
                training=True,
            )
        gradients = [
            tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)
        ]
        state = [(each, now(scope, value, each)) for each, value in state]
        with keras.StatelessScope(state_mapping=state) as scope:
            model.optimizer.step(gradients)
            model.metrics[0].update_state(loss, sample_weight=ROWS)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return [now(scope, value, each) for each, value in state]

    values = [tf.convert_to_tensor(each.value) for each in variables]
    return step, (values, *data)


def lowered(function, arguments) -> str:
    """The program for a TPU, before the compiler takes it."""
    flat = [tf.convert_to_tensor(each) for each in tree.flatten(arguments)]

    @tf.function(jit_compile=True, autograph=False)
    def flat_function(*flat):
        return function(*tree.pack_sequence_as(arguments, flat))

    program = flat_function.experimental_get_compiler_ir(*flat)
    return program(stage="hlo", platform_name="TPU")


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def flops(program: str) -> collections.Counter:
    """A multiplication and an addition for each product; by what they take."""
    total = collections.Counter()
    for _, result, dtype, left, contracted in _DOT.findall(program):
        left = numbers(left)
        summed = math.prod(left[axis] for axis in numbers(contracted))
        total[dtype] += 2 * math.prod(numbers(result)) * summed
    return total


def main(dropout: float = 0.0, dtype: str = "float32") -> None:
    keras.config.set_dtype_policy(dtype)
    config = CONFIG.replace(
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    model = ka.AlbertForPretraining(ka.AlbertBackbone(config))
    compile_for_pretraining(model, PureLamb())
    data = next(iter(dataset()))
    build_for_batch(model, data)
    model.optimizer.build(model.trainable_variables)
    function, arguments = pure_step(model, data)
    program = lowered(function, arguments)
    entry = program[program.index("\nENTRY") :]
    returned = entry[entry.index("->") : entry.index("{\n")]
    found = {
        "variables": len(arguments[0]),
        "arguments": len(tree.flatten(arguments)),
        "parameters": len(re.findall(r" parameter\(\d+\)", entry)),
        "results": len(re.findall(_TYPE, returned)),
        "flops": flops(program),
        "calls_to_the_host": re.findall(rf"= .* ({_HOST})\(", program),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])

"""Writes warm-up requests, which a server replays before it serves a version.

The first request of each signature is slow, since TensorFlow then initializes
it. TensorFlow Serving therefore replays the requests in
`assets.extra/tf_serving_warmup_requests`, a TFRecord file of PredictionLog
messages. It refuses a version if one of them fails, or if there are more than
1,000. All are PredictRequests, also for the signature `classify`, since
`tf.saved_model.save` declares every signature to be for prediction.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keras_albert.finetuning.predictor import Predictor
from keras_albert.tasks.serving import Serving

WARM_UP_FILE = "tf_serving_warmup_requests"
# A server that batches requests needs a max_batch_size of the larger one.
BATCH_SIZES = (1, 8)
SHORT = 8  # tokens of short requests; long ones have as many as possible


def write_warm_up(predictor: Predictor, signatures: dict, folder: Path) -> None:
    """Writes requests for the signatures of `serving_module` to a folder."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / WARM_UP_FILE)) as file:
        for signature, inputs in _requests(predictor, signatures):
            tensors = {
                name: tf.make_tensor_proto(value).SerializeToString()
                for name, value in inputs.items()
            }
            file.write(_prediction_log(signature, tensors))


def _requests(
    predictor: Predictor, signatures: dict
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Requests for each signature: small and large, short and long ones."""
    longest = predictor.sequence_length
    if predictor.reading is not None:
        longest = predictor.reading.windows.sequence_length
    serving = predictor.definition.serving
    for signature, function in sorted(signatures.items()):
        specs, _ = function.structured_input_signature
        for batch in BATCH_SIZES:
            for length in (min(SHORT, longest), longest):
                inputs = {
                    spec.name: _rows(spec.name, batch, serving, length)
                    for spec in specs
                }
                yield signature, inputs


def _rows(name: str, batch: int, serving: Serving, length: int) -> np.ndarray:
    """Values of an input, with about `length` tokens a row."""
    text, ids = serving.example(length)
    if name == "token_ids":
        return np.tile(ids, [batch, 1])
    text = text.encode()
    if name == "choices":
        return np.array([[text, text]] * batch, object)
    if name == "inputs":
        text = _example(text)
    return np.array([text] * batch, object)


def _example(text: bytes) -> bytes:
    """A tf.Example of one text."""
    import tensorflow as tf

    values = tf.train.BytesList(value=[text])
    feature = {"text": tf.train.Feature(bytes_list=values)}
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString()


# The package tensorflow-serving-api has these messages, but requires a certain
# version of TensorFlow. Since only four simple ones are needed, they are
# serialized here.


def _prediction_log(signature: str, tensors: dict[str, bytes]) -> bytes:
    """A serialized PredictionLog, see tensorflow_serving/apis/*.proto.

    It does not contain the model's name, which the server's configuration
    defines.
    """
    model_spec = _message((3, signature.encode()))  # signature_name
    inputs = [
        _message((1, name.encode()), (2, tensor))  # key, value
        for name, tensor in tensors.items()
    ]
    request = _message((1, model_spec), *((2, each) for each in inputs))
    return _message((6, _message((1, request))))  # predict_log, its request


def _message(*fields: tuple[int, bytes]) -> bytes:
    """A serialized message whose fields are strings or messages.

    A field has a byte with its number (below 16) and the wire type 2
    (length-delimited), its length, and its content.
    """
    return b"".join(
        bytes([number << 3 | 2]) + _varint(len(content)) + content
        for number, content in fields
    )


def _varint(number: int) -> bytes:
    """Protobuf's varint: groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])

"""What a model is for, found by its head: task, labels, lengths, reading.

A model that was fitted in Python, or that another library has written, says
none of this by itself. What is given is checked against the head.
"""

from collections.abc import Sequence

from keras_albert.errors import AlbertError
from keras_albert.modeling.backbone import AlbertBackbone
from keras_albert.modeling.base import AlbertModel, check_model
from keras_albert.modeling.classification import (
    AlbertForMultipleChoice,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    default_labels,
)
from keras_albert.modeling.config import AlbertConfig
from keras_albert.modeling.pretraining import (
    AlbertForMaskedLM,
    AlbertForPretraining,
)
from keras_albert.modeling.question_answering import (
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
)
from keras_albert.modeling.text_embedding import AlbertForTextEmbedding
from keras_albert.tasks.names import EMBEDDING, FILL_MASK, READING_TASKS
from keras_albert.tasks.pretrained import USES
from keras_albert.tasks.question_answering.config import (
    AnswerConfig,
    ReadingConfig,
    WindowConfig,
    WindowOptions,
)
from keras_albert.tasks.question_answering.task import NAMES
from keras_albert.text.tokenizer import SHORTEST_SINGLE, Tokenizer

SHORTEST_LENGTH = 32  # tokens: a row of fewer is hardly faster
_TASKS = {
    AlbertForTokenClassification: "tokens",
    AlbertForMultipleChoice: "choice",
    AlbertForQuestionAnswering: "qa",
    AlbertForQuestionAnsweringV2: "qa",
    AlbertForTextEmbedding: EMBEDDING,
    AlbertBackbone: EMBEDDING,
    AlbertForMaskedLM: FILL_MASK,
    AlbertForPretraining: FILL_MASK,
}
_OF_PROBLEM = {
    "single_label": "classification",
    "multi_label": "multilabel",
    "regression": "regression",
}


def head_task(model: AlbertModel) -> str:
    """The task of a head, where nothing else is said.

    Raises:
        AlbertError: not a model of this package, or one with an unknown head.
    """
    check_model(model)
    if isinstance(model, AlbertForSequenceClassification):
        return _OF_PROBLEM[model.problem]
    for kind, task in _TASKS.items():
        if isinstance(model, kind):
            return task
    raise AlbertError(
        "expected a model with a head of this package. Received: "
        f"{type(model).__name__}. Its encoder can be used for vectors: "
        "model.backbone."
    )


def checked_task(model: AlbertModel, task: str | None) -> str:
    """The task; of several that fit the head, the plainest if none is given.

    Raises:
        AlbertError: an unknown task, or one that the head does not fit.
    """
    own = head_task(model)
    if task is None or task == own:
        return own
    if task not in USES:
        raise AlbertError(
            f"`task` must be one of {', '.join(USES)}. Received: {task!r}."
        )
    # Tasks of one head read its outputs alike, and every model has vectors.
    if task != EMBEDDING and USES[task].decode is not USES[own].decode:
        fitting = [
            name for name, row in USES.items() if row.decode is USES[own].decode
        ]
        problem = getattr(model, "problem", None)
        raise AlbertError(
            f"`task` must fit the head of the model, {type(model).__name__}"
            f"{f' ({problem})' if problem else ''}: expected one of "
            f"{', '.join(fitting)}. Received: {task!r}."
        )
    return task


def checked_labels(
    model: AlbertModel, task: str, labels: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The names of the classes, in the order of the logits.

    Those that are given, else the model's own, else "0", "1" and so on. A
    model that may find no answer to a question has two names of its own.

    Raises:
        AlbertError: another number of names than the head has classes, names
            that are no different texts, or names for a head without classes.
    """
    if task in READING_TASKS:
        may_refuse = isinstance(model, AlbertForQuestionAnsweringV2)
        if labels is None:
            return NAMES if may_refuse else None
        if tuple(labels) == NAMES:
            return NAMES
        raise AlbertError(
            f"the labels of a model that answers questions are {list(NAMES)}, "
            "where it may find no answer, or left out. Received: "
            f"{labels!r:.80}."
        )
    count = getattr(model, "num_labels", None)
    if USES[task].decode is USES["regression"].decode:
        if count != 1:
            raise AlbertError(
                "a regression has one number, num_labels=1. Received: "
                f"num_labels={count}."
            )
        count = None
    if task == EMBEDDING or count is None:
        if labels is not None:
            raise AlbertError(
                f"a model for {task} has no labels. Received: "
                f"labels={labels!r:.80}. Leave them out."
            )
        return None
    if labels is None:
        labels = model.labels or default_labels(count)
    is_list = isinstance(labels, list | tuple)
    names = tuple(map(str, labels)) if is_list else ()
    if len(set(names)) != count or len(names) != count:
        raise AlbertError(
            f"`labels` must be a list of {count} different names, one for each "
            f"output of the head, in their order. Received: {labels!r:.80}."
        )
    return names


def checked_tokenizer(
    model: AlbertModel, tokenizer: Tokenizer | None
) -> Tokenizer:
    """The vocabulary; the model has it, too, from then on.

    Raises:
        AlbertError: there is none, or it has more pieces than the model.
    """
    if tokenizer is not None:
        model.tokenizer = tokenizer
    if model.tokenizer is None:
        raise AlbertError(
            "texts need a vocabulary and this model has none. Give it: "
            "tokenizer=keras_albert.Tokenizer('spiece.model')."
        )
    return model.tokenizer


def checked_lengths(
    config: AlbertConfig,
    lengths: Sequence[int] | None,
    reading: ReadingConfig | None,
) -> tuple[int, ...]:
    """Tokens that rows are padded to; powers of two where none are given.

    Raises:
        AlbertError: no ascending positive integers, or more than the model
            has positions.
    """
    most = config.max_position_embeddings
    longest = reading.windows.sequence_length if reading else most
    if lengths is None:
        powers = (2**power for power in range(longest.bit_length()))
        short = [n for n in powers if SHORTEST_LENGTH <= n < longest]
        return (*short, longest)
    is_list = isinstance(lengths, list | tuple) and len(lengths) > 0
    if (
        not is_list
        or any(
            type(each) is not int or each < SHORTEST_SINGLE for each in lengths
        )
        or sorted(set(lengths)) != list(lengths)
        or lengths[-1] > most
    ):
        raise AlbertError(
            f"`lengths` must be ascending integers from {SHORTEST_SINGLE} to "
            f"max_position_embeddings={most}. Received: {lengths!r:.60}."
        )
    return tuple(lengths)


def checked_reading(
    config: AlbertConfig, task: str, reading: ReadingConfig | None
) -> ReadingConfig | None:
    """How contexts are read, where the task has any.

    Raises:
        AlbertError: it is given for another task, or its windows are longer
            than the model can have them.
    """
    if task not in READING_TASKS:
        if reading is not None:
            raise AlbertError(
                f"`reading` is for {', '.join(READING_TASKS)}. Received: "
                f"task={task!r}. Leave it out."
            )
        return None
    most = config.max_position_embeddings
    if reading is None:
        length = min(most, WindowConfig.sequence_length)
        return ReadingConfig(WindowOptions().of(length), AnswerConfig())
    if reading.windows.sequence_length > most:
        raise AlbertError(
            "`reading.windows.sequence_length` must not exceed the model's "
            f"max_position_embeddings={most}. Received: "
            f"{reading.windows.sequence_length}."
        )
    return reading

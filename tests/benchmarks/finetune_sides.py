"""Who fine-tunes: ours, KerasHub and transformers, from strings to results.

Each side begins a call with texts as strings, so tokenizing is in its time, and
does what its documentation tells a user to do. All have the same weights, batch
size and AdamW (rate, decay, clipping). Keras reads KERAS_BACKEND; the backend
of all but transformers.
"""

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import sentencepiece
from bench_finetune import GLUE_TASK, SIZES, VOCAB
from keras import ops
from sides import finite

import keras_albert as ka
from keras_albert.data.batches import (
    BatchPlan,
    Features,
    choose_lengths,
    epoch_plan,
    sorted_plan,
    training_dataset,
)
from keras_albert.data.glue import glue_task, read_glue
from keras_albert.data.tables import Table
from keras_albert.finetuning.model import compile_with
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.text.model_inputs import text_rows
from keras_albert.text.normalization import normalize
from keras_albert.training.config import OptimizerConfig
from keras_albert.training.optimizer import make_optimizer

TASK = "classification"
LABELS = glue_task(GLUE_TASK).labels
# So little that the weights stay: the mean loss of an epoch is then the same
# for any order of examples, and with bias correction (peers) or without (ours).
ADAMW = OptimizerConfig(optimizer="adamw", learning_rate=1e-9)
LOGITS_TOLERANCE = 1e-4  # absolute, float32
LOSS_TOLERANCE = 1e-3  # relative
SEED = 0
WIDTH = 2.0  # of random weights, times hidden_size ** -0.5
CENTRED_ON = 32  # texts


@dataclasses.dataclass(frozen=True)
class Examples:
    """N labelled texts."""

    texts: list[str]
    targets: np.ndarray
    """int32 [N], indices of LABELS"""
    lengths: np.ndarray
    """int64 [N], tokens; [CLS] and [SEP] count, padding does not"""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def tokens(self) -> int:
        """Of all."""
        return int(self.lengths.sum())

    def sample(self, plan: BatchPlan, batches: int) -> "Examples":
        """Whole batches of a plan of all, in random order.

        They are taken evenly from the shortest to the longest, so that their
        lengths, and what padding they need, are those of all. Random examples
        would seldom fill a batch with others of their length.
        """
        if batches > len(plan):
            raise ka.AlbertError(
                f"there are {len(plan)} batches. Received: {batches}. Ask for "
                "fewer, or lower --batch-size."
            )
        ordered = sorted(plan, key=lambda batch: batch[1])
        middles = (np.arange(batches) + 0.5) * len(plan) / batches
        chosen = np.concatenate([ordered[int(i)][0] for i in middles])
        chosen = np.random.default_rng(SEED).permutation(chosen)
        return Examples(
            [self.texts[i] for i in chosen],
            self.targets[chosen],
            self.lengths[chosen],
        )


@dataclasses.dataclass(frozen=True)
class Side:
    """Something to time."""

    train: Callable[[Examples], tuple[float, int]]
    """an epoch -> its mean loss, and the tokens that went in, with padding"""
    predict: Callable[[Examples], tuple[np.ndarray, int]]
    """logits [N, 2] in the order of the texts, and the tokens again"""
    weights: int
    """trainable numbers"""


def make_sides(
    peer: str, options: argparse.Namespace
) -> tuple[Examples, Examples, dict[str, Side]]:
    """Training examples, dev examples, and both sides with equal weights."""
    tokenizer = ka.Tokenizer(options.data / VOCAB)
    config = SIZES[options.size].replace(vocab_size=tokenizer.vocab_size)
    longest = config.max_position_embeddings
    every, every_dev = (
        read_examples(options.data / "glue", split, tokenizer, longest)
        for split in ("train", "dev")
    )
    model = classifier(config, tokenizer, every_dev.texts)
    with tempfile.TemporaryDirectory() as folder:
        theirs = PEERS[peer](model, options.batch_size, Path(folder, "model"))
    lengths = np.union1d(choose_lengths(every.lengths, longest), longest)
    size = options.batch_size
    epoch = epoch_plan(every.lengths, lengths, size, SEED, 0)
    evaluation = sorted_plan(every_dev.lengths, lengths, size)
    return (
        every.sample(epoch, options.train_batches),
        every_dev.sample(evaluation, options.dev_batches),
        {"ours": ours(model, size, lengths), "peer": theirs},
    )


def read_examples(
    folder: Path, split: str, tokenizer: ka.Tokenizer, longest: int
) -> Examples:
    """A split of SST-2.

    Texts are made such that all tokenizers agree: KerasHub's does not
    normalize, and transformers' takes two single quotes for a double one.
    """
    table = read_glue(folder, GLUE_TASK, split, any_size=True)
    texts = [
        normalize(text, **tokenizer.settings)
        .replace("``", '"')
        .replace("''", '"')
        for text in table.values["text"]
    ]
    return Examples(
        texts,
        np.array([LABELS.index(x) for x in table.values["label"]], "int32"),
        Features(text_rows(tokenizer, texts, None, longest)).lengths,
    )


def classifier(
    config: ka.AlbertConfig, tokenizer: ka.Tokenizer, texts: list[str]
) -> ka.AlbertForSequenceClassification:
    """The model that all sides begin with.

    Random weights, so wide that a text matters to the answer, and a bias with
    which some texts are of either class. No dropout, so that losses can be
    compared.
    """
    keras.utils.set_random_seed(SEED)
    wide = config.replace(initializer_range=WIDTH * config.hidden_size**-0.5)
    model = ka.AlbertForSequenceClassification(
        ka.AlbertBackbone(wide, tokenizer=tokenizer),
        len(LABELS),
        dropout=0.0,
        labels=LABELS,
    )
    x = tokenizer(texts[:CENTRED_ON], max_length=config.max_position_embeddings)
    logits = ops.convert_to_numpy(model(x))
    model.classifier.bias.assign(-logits.mean(axis=0))
    return model


def ours(model, batch_size: int, lengths: np.ndarray) -> Side:
    """As `finetune` does it.

    Args:
        lengths: the static ones, int64 [K].
    """
    tokenizer = model.tokenizer
    longest = model.config.max_position_embeddings

    def features(texts: list[str], targets=None) -> Features:
        values, count = {"text": texts}, len(texts)
        if targets is not None:
            values["label"] = [LABELS[target] for target in targets]
        table = Table(Path("texts"), values, [{}] * count, [0] * count)
        return ALL_TASKS[TASK].features(tokenizer, table, LABELS, longest)

    optimizer = make_optimizer(ADAMW, ADAMW.learning_rate)
    compile_with(ALL_TASKS[TASK].loss(LABELS), model, optimizer)
    predictor = ka.Predictor(
        model, TASK, LABELS, tokenizer, tuple(lengths.tolist())
    )
    seeds = iter(range(2**32))

    def tokens(plan) -> int:
        return batch_size * sum(length for _, length in plan)

    def train(examples):
        found, seed = features(examples.texts, examples.targets), next(seeds)
        batches = training_dataset(
            found, lengths, batch_size=batch_size, seed=seed, epochs=1
        )
        history = model.fit(batches, shuffle=False, verbose=0).history
        plan = epoch_plan(found.lengths, lengths, batch_size, seed, 0)
        return finite(history["loss"][-1]), tokens(plan)

    def predict(examples):
        found = features(examples.texts)
        logits = np.stack(predictor.outputs(found, batch_size))
        return logits, tokens(sorted_plan(found.lengths, lengths, batch_size))

    return Side(train, predict, model.count_params())


def keras_hub(model, batch_size: int, folder: Path) -> Side:
    """Strings into `fit` and `predict`, with the preset's preprocessor.

    That pads each text to all positions of the model: 512, its default.
    """
    import keras_hub

    ka.save_keras_hub(model, folder)
    theirs = keras_hub.models.AlbertTextClassifier.from_preset(str(folder))
    length = theirs.preprocessor.sequence_length
    theirs.compile(
        optimizer=keras.optimizers.AdamW(
            ADAMW.learning_rate,
            weight_decay=ADAMW.weight_decay,
            beta_1=ADAMW.beta_1,
            beta_2=ADAMW.beta_2,
            epsilon=ADAMW.epsilon,
            global_clipnorm=ADAMW.clip_norm,
        ),
        metrics=[],
    )

    def train(examples):
        history = theirs.fit(
            np.array(examples.texts),
            examples.targets,
            batch_size=batch_size,
            verbose=0,
        ).history
        return finite(history["loss"][-1]), length * len(examples)

    def predict(examples):
        logits = theirs.predict(
            np.array(examples.texts), batch_size=batch_size, verbose=0
        )
        return np.asarray(logits), length * len(examples)

    return Side(train, predict, theirs.count_params())


def transformers(model, batch_size: int, folder: Path) -> Side:
    """Batches padded to their own longest text, in random order.

    What its `Trainer` does without options: fused AdamW, clipping, and
    evaluation in the order of the file.
    """
    import torch
    import transformers

    ka.save_huggingface(model, folder)
    tokenizer = transformers.AlbertTokenizer(
        vocab=scored_pieces(model.tokenizer)
    )
    longest = model.config.max_position_embeddings
    collate = transformers.DataCollatorWithPadding(tokenizer)
    theirs = transformers.AlbertForSequenceClassification.from_pretrained(
        folder
    )
    optimizer = torch.optim.AdamW(
        theirs.parameters(),
        ADAMW.learning_rate,
        betas=(ADAMW.beta_1, ADAMW.beta_2),
        eps=ADAMW.epsilon,
        weight_decay=ADAMW.weight_decay,
        fused=True,
    )

    def batches(texts, shuffle, **more):
        columns = {
            **tokenizer(
                texts,
                truncation=True,
                max_length=longest,
                return_token_type_ids=True,
            ),
            **more,
        }
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        return torch.utils.data.DataLoader(
            rows, batch_size, shuffle=shuffle, collate_fn=collate
        )

    def train(examples):
        theirs.train()
        losses, tokens = [], 0
        for batch in batches(
            examples.texts, shuffle=True, labels=examples.targets.tolist()
        ):
            loss = theirs(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), ADAMW.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item() * len(batch["labels"]))
            tokens += batch["input_ids"].numel()
        return finite(sum(losses) / len(examples)), tokens

    def predict(examples):
        theirs.eval()
        logits, tokens = [], 0
        with torch.inference_mode():
            for batch in batches(examples.texts, shuffle=False):
                logits.append(theirs(**batch).logits.numpy())
                tokens += batch["input_ids"].numel()
        return np.concatenate(logits), tokens

    return Side(train, predict, theirs.num_parameters())


def scored_pieces(tokenizer: ka.Tokenizer) -> list[tuple[str, float]]:
    """The pieces of a vocabulary, as `transformers.AlbertTokenizer` takes them.

    Read from spiece.model by transformers 5, the pieces ( ) . - would cut
    words apart before SentencePiece's algorithm sees them.
    """
    model = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer.model_bytes
    )
    return [
        (model.id_to_piece(i), model.get_score(i))
        for i in range(model.get_piece_size())
    ]


PEERS = {"keras_hub": keras_hub, "transformers": transformers}


def check_same_predictions(ours: np.ndarray, peer: np.ndarray) -> float:
    """The largest difference of two logits, [N, 2] both.

    Raises:
        AlbertError: it is more than LOGITS_TOLERANCE, or a class differs.
    """
    difference = float(np.abs(ours - peer).max())
    others = int((ours.argmax(-1) != peer.argmax(-1)).sum())
    if others or not difference <= LOGITS_TOLERANCE:
        raise ka.AlbertError(
            f"both sides must give the same logits, to {LOGITS_TOLERANCE}. "
            f"Received: they differ by up to {difference:.2g}, and the class "
            f"of {others} of {len(ours)} texts does. Give both the same "
            "weights, and texts that both normalize the same."
        )
    return difference


def check_same_training(
    sides: dict[str, Side], losses: dict[str, float]
) -> None:
    """AlbertError unless both train as many weights, with the same loss."""
    weights = {name: side.weights for name, side in sides.items()}
    if weights["ours"] != weights["peer"]:
        raise ka.AlbertError(
            "both sides must train as many weights. Received: ours "
            f"{weights['ours']:,}, peer {weights['peer']:,}."
        )
    if not math.isclose(losses["ours"], losses["peer"], rel_tol=LOSS_TOLERANCE):
        raise ka.AlbertError(
            "both sides must have the same loss in the first epoch, to "
            f"{LOSS_TOLERANCE:.1%}. Received: ours {losses['ours']:.4f}, peer "
            f"{losses['peer']:.4f}. Give both the same examples and optimizer."
        )

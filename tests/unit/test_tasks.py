"""Fine-tuning tasks: what is learned, what is said, how it is scored."""

import dataclasses
import re
import types
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from commands import write_rows
from pyarrow import parquet
from scipy import stats
from scipy.special import expit

import keras_albert as ka
from keras_albert.data.batches import Features
from keras_albert.data.config import TableColumns
from keras_albert.data.tables import Table
from keras_albert.errors import AlbertError
from keras_albert.finetuning.recipes import choose
from keras_albert.finetuning.report import (
    decision_lines,
    scores_lines,
    seeds_report,
)
from keras_albert.tasks.metrics import entity_f1
from keras_albert.tasks.multiple_choice import choice_index
from keras_albert.tasks.registry import ALL_TASKS
from keras_albert.tasks.vector_scores import (
    cosines as cosines_of,
    search_scores,
)
from keras_albert.text.model_inputs import Row, text_rows

pytestmark = pytest.mark.any_backend


def table(**values):
    count = len(values["text"])
    return Table(Path("x"), values, [{}] * count, [*range(1, count + 1)])


def features(task, names, tokenizer, **values):
    return ALL_TASKS[task].features(tokenizer, table(**values), names, 40)


@pytest.mark.parametrize(
    ("expected", "predicted", "score"),
    [
        (["B-P I-P O"], ["B-P I-P O"], 1.0),
        (["B-P I-P O"], ["B-P O O"], 0.0),  # another end
        (["B-P I-P O"], ["B-Q I-Q O"], 0.0),  # another type
        # Two right of four found and four there.
        (["B-P O B-P B-Q I-Q B-P"], ["B-P O B-P I-P I-Q B-P"], 0.5),
        (["O O"], ["O O"], 0.0),  # not defined
        (["O O"], ["O I-P"], 0.0),
        # They do not reach into the next text.
        (["B-P", "I-P"], ["B-P", "I-P"], 1.0),
        (["B-P I-P"], ["B-P B-P"], 0.0),
    ],
)
def test_entities(expected, predicted, score):
    texts = ([text.split() for text in each] for each in (expected, predicted))
    assert entity_f1(*texts) == score


def test_names_of_labels_decide_whether_there_are_entities(tokenizer):
    """All seeds of a run must have the same scores, whatever they predict."""
    values = {"text": [["a", "fox"]], "label": [["O", "B-X"]]}
    task = ALL_TASKS["tokens"]
    for third, there in ("I-X", True), ("MISC", False):
        names = ("O", "B-X", third)
        found = features("tokens", names, tokenizer, **values)
        outputs = [np.eye(3)[np.maximum(row, 0)] for row in found.token_target]
        scores = task.scores(outputs, found, names).values
        assert ("entity_f1" in scores) == there


def test_weights_of_a_batch():
    """Those of its rows, and 0 for the row that fills it up."""
    rows = [Row(np.array([2, 9, 3], "int32"), 3)] * 4
    weights = np.array([2, 0.5, 1, 1], "float32")
    weighed = Features(rows, np.array([0, 2, 2, 2]), weight=weights)
    _, _, weight = weighed.batch(np.array([1, 0]), 3, 8)
    np.testing.assert_allclose(weight, [0.5, 2, 0])


def test_right_choice():
    choices = ["a dog", "a fox", "hens"]
    for label, index in (("B", 1), ("0", 0), ("a dog", 0), ("C", 2)):
        assert choice_index(label, choices) == index
    for label in ("D", "3", "-1", "a cat", "b", 3, -1):
        with pytest.raises(AlbertError, match=r"A to C.*0 to 2.*Received"):
            choice_index(label, choices)
    # A number is an index, though another choice reads like it; as text it
    # may be either.
    assert choice_index(0, ["3", "0", "7"]) == 0
    assert choice_index("0", ["0", "3", "7"]) == 0
    assert choice_index("b", ["a", " b "]) == 1, "labels are stripped"
    for label, choices in (
        ("0", ["3", "0", "7"]),
        ("A", ["B", "A"]),
        ("x", ["x", "x"]),
    ):
        with pytest.raises(AlbertError, match="may be number 0 or 1"):
            choice_index(label, choices)


def test_more_choices_than_letters(tokenizer):
    """The last of thirty is 29, and no letter."""
    many = [f"choice {i}" for i in range(30)]
    with pytest.raises(AlbertError, match=r"A to Z.*0 to 29"):
        choice_index("31", many)
    quiz = {"text": ["a", "b"], "choices": [many] * 2, "label": [29, 1]}
    examples = features("choice", None, tokenizer, **quiz)
    outputs = [np.eye(30)[29]] * 2
    scores = ALL_TASKS["choice"].scores(outputs, examples, None)
    assert scores.values["accuracy"] == 0.5
    assert "taken for '29'" in scores.remarks[-1]


def test_a_class(tokenizer):
    """Logits ln 3 and 0: probabilities 3/4 and 1/4."""
    names = ("no", "yes")
    texts = {"text": ["the fox", "hens", "two"], "label": ["yes", "no", "no"]}
    examples = features("classification", names, tokenizer, **texts)
    assert examples.target.tolist() == [1, 0, 0]
    outputs = [np.array([np.log(3), 0]), np.array([0, 1]), np.array([2, 0])]
    task = ALL_TASKS["classification"]
    decoded = task.decode(outputs, examples, names)
    assert decoded[0] == {"prediction": "no", "score": 0.75}
    assert [row["prediction"] for row in decoded] == ["no", "yes", "no"]
    scores = task.scores(outputs, examples, names)
    assert scores.values["accuracy"] == pytest.approx(1 / 3)
    assert scores.values["matthews"] == pytest.approx(-0.5)
    assert scores.remarks == ()
    assert task.baseline(examples) == pytest.approx(2 / 3)
    # Of the probabilities of the labels: 1/4, 1 of 1 + e, e^2 of 1 + e^2.
    loss = np.log([4, 1 + np.e, 1 + np.exp(-2)]).mean()
    found = task.held_out_loss(outputs, examples, names)
    assert found == {"loss": pytest.approx(loss, abs=1e-6)}
    collapsed = task.scores([np.array([1, 0])] * 3, examples, names)
    assert "taken for 'no'" in collapsed.remarks[-1]
    # A threshold that takes all for "yes", and one that tells them apart.
    outputs = [np.array([1, 0.1 * i]) for i in range(3)]
    for limit, found in ((0.2, True), (0.3, False)):
        moved = dataclasses.replace(examples, threshold=(limit,))
        remarks = task.scores(outputs, moved, names).remarks
        assert ("taken for 'yes'" in " ".join(remarks)) == found
        assert "taken for 'no'" not in " ".join(remarks)
    unknown = {"text": ["a"], "label": ["maybe"]}
    message = "x:1: the label is the unknown label 'maybe'"
    with pytest.raises(AlbertError, match=message):
        features("classification", names, tokenizer, **unknown)


def test_groups_are_scored_alone(tokenizer):
    """Two of four are right, one of each group of one and three."""
    names = ("no", "yes")
    several = table(text=[*"abcd"], label=["no", "no", "yes", "no"])
    several = dataclasses.replace(several, groups=["m", "h", "m", "m"])
    task = ALL_TASKS["classification"]
    examples = task.examples(tokenizer, several, names, 40)
    outputs = [np.array(row) for row in ([0, 1], [1, 0], [0, 1], [0, 1])]
    values = task.measure(outputs, examples, names).values
    assert values["accuracy"] == pytest.approx(1 / 2)
    assert values["m_accuracy"] == pytest.approx(1 / 3)
    assert values["h_accuracy"] == pytest.approx(1)
    assert [*values][-2:] == ["m_accuracy", "h_accuracy"]


def test_a_part_of_the_examples(tokenizer):
    """Of those with several rows each."""
    quiz = {"text": ["x", "y", "z"], "label": [0, 1, 0]}
    quiz["choices"] = [["a", "b"], ["c", "d"], ["e", "f"]]
    chosen = features("choice", None, tokenizer, **quiz)
    part = chosen.take(np.array([2, 1]))
    assert part.target.tolist() == [0, 1]
    assert part.rows == [*chosen.rows[4:6], *chosen.rows[2:4]]
    texts = {"text": [["a"], ["b", "c"]], "label": [["O"], ["X", "O"]]}
    words = features("tokens", ("O", "X"), tokenizer, **texts)
    part = words.take(np.array([1]))
    assert part.rows == words.rows[1:]
    assert part.token_target[0] is words.token_target[1]


COST = {"minutes": 0.5, "tokens": 64, "flops": 2.0, "joules": None}


def test_several_seeds_by_hand():
    rest = {"task": "RTE", "best": "accuracy", "baseline": 0.5, "count": 9}
    rest |= {"epoch": 3.0, "cost": COST}
    reports = {
        seed: rest | {"accuracy": accuracy, "training_loss": loss}
        for seed, accuracy, loss in ((3, 0.5, 2.0), (4, 0.75, 1.0), (6, 0.7, 0))
    }
    found = seeds_report(reports, [5])
    assert found["seeds"] == [3, 4, 6] and found["diverged"] == [5]
    assert found["best_seed"] == 4
    assert found["scores"]["accuracy"] == {
        "median": 0.7,
        "mean": pytest.approx(0.65),
        "standard_deviation": pytest.approx(0.0175**0.5),
        "all": [0.5, 0.75, 0.7],
    }
    assert found["scores"].keys() == {"accuracy", "training_loss"}
    total = {"minutes": 1.5, "tokens": 192, "flops": 6.0, "joules": None}
    assert found["cost"] == total
    # Without held-out examples the lowest loss is best.
    bare = {"task": "RTE", "training_loss": 2.0}
    found = seeds_report({0: bare, 1: bare | {"training_loss": 1.0}}, [])
    assert found["best_seed"] == 1 and found["best"] is None
    assert found["cost"] is None  # reports of older versions have no costs


def test_a_score_stands_beside_its_baselines():
    """A linear model of words that is better is named, as guessing is."""
    scores = {
        "best": "accuracy",
        "accuracy": 0.7,
        "baseline": 0.5,
        "constant": "the most frequent label",
        "count": 20,
        "remarks": [],
    }
    (line,) = scores_lines(scores | {"accuracy": 0.5})
    assert line.endswith(": no better than guessing")
    better = ": .* of words is better"
    for linear, expected in ((0.65, ""), (0.7, ""), (0.8, better)):
        (line,) = scores_lines(scores | {"bag_of_words": linear})
        words = f"a linear model of words: {linear:.3f}; 20 examples"
        assert re.fullmatch(rf".* accuracy 0.700 \(.*{words}\){expected}", line)
    seeds = {s: scores | {"task": "RTE", "bag_of_words": 0.65} for s in (0, 1)}
    found = seeds_report(seeds, [])
    assert found["bag_of_words"] == 0.65
    assert list(found["scores"]) == ["accuracy"]


def test_calibration_that_does_not_help():
    """The error of rows that the temperature was not fitted on tells it."""
    found = {"temperature": 1.5, "error_before": 0.2, "error_after": 0.1}
    (line,) = decision_lines({"calibration": found})
    assert "error 0.200 before, 0.100 after" in line
    worse = found | {"error_after": 0.3}
    assert "does not help" in decision_lines({"calibration": worse})[1]


def test_a_number(tokenizer):
    texts = {"text": ["a", "b"], "label": [1.0, 3.0]}
    examples = features("regression", None, tokenizer, **texts)
    outputs = [np.array([2.0]), np.array([4.0])]
    scores = ALL_TASKS["regression"].scores(outputs, examples, None).values
    assert scores["pearson"] == pytest.approx(1)
    assert scores["root_mean_squared_error"] == pytest.approx(1)
    further = [np.array([2.0]), np.array([5.0])]
    scores = ALL_TASKS["regression"].scores(further, examples, None).values
    assert scores["root_mean_squared_error"] == pytest.approx(2.5**0.5)
    found = ALL_TASKS["regression"].held_out_loss(further, examples, None)
    assert found == {"loss": pytest.approx(2.5)}
    # Equal but for rounding, of the own task and of a published one.
    outputs_of_one = [np.array([2.0]), np.array([2.0 + 2e-7])]
    for task in ("regression", "STS-B"):
        same = ALL_TASKS[task].scores(outputs_of_one, examples, None)
        assert "is given 2: the training has collapsed" in same.remarks[-1]
    # Nothing has collapsed if the labels are all the same, too.
    texts = {"text": ["a", "b"], "label": [3.0, 3.0]}
    equal = features("regression", None, tokenizer, **texts)
    said = ALL_TASKS["regression"].scores(outputs_of_one, equal, None).remarks
    assert "collapsed" not in " ".join(said)
    assert ALL_TASKS["regression"].decode(outputs, examples, None) == [
        {"prediction": 2.0},
        {"prediction": 4.0},
    ]


def test_several_labels(tokenizer):
    names = ("a", "b", "c")
    texts = {"text": ["x", "y"], "label": [["c", "a"], []]}
    examples = features("multilabel", names, tokenizer, **texts)
    assert examples.target.tolist() == [[1, 0, 1], [0, 0, 0]]
    outputs = [np.array([5.0, -5.0, 0.1]), np.array([0.0, -1.0, -9.0])]
    first, second = ALL_TASKS["multilabel"].decode(outputs, examples, names)
    assert first["prediction"] == ["a", "c"]
    assert first["score"]["a"] == pytest.approx(expit(5), abs=1e-6)
    assert second["prediction"] == [] and second["score"]["a"] == 0.5
    task = ALL_TASKS["multilabel"]
    right = expit([[5, 5, 0.1], [0, 1, 9]])  # each label's true answer
    found = task.held_out_loss(outputs, examples, names)
    assert found == {"loss": pytest.approx(-np.log(right).mean(), abs=1e-6)}
    # Both labels that are chosen wrongly are as probable as the surer one.
    wrong = [np.log([9.0, 0.1, 1.5]), np.full(3, -9.0)]
    none = dataclasses.replace(examples, target=np.zeros((2, 3), "float32"))
    assert task.wrongness(wrong, none) == pytest.approx([0.9, 0])
    said = task.scores([wrong[1]] * 2, none, names).remarks
    assert "collapsed" not in " ".join(said)
    assert task.scores(outputs, examples, names).values["micro_f1"] == 1
    outputs = [np.array([1.0, -1.0, 0.1 * i]) for i in (1, 2)]
    for limits, found in (
        (None, ["a", "c"]),
        ((0.5, 0.1, 0.5), ["a", "b", "c"]),
        ((0.5, 0.5, 0.54), None),  # tells the texts apart
    ):
        moved = dataclasses.replace(examples, threshold=limits)
        remarks = " ".join(task.scores(outputs, moved, names).remarks)
        assert (f"given the labels {found}" in remarks) == (found is not None)
        assert ("collapsed" in remarks) == (found is not None)


def test_vectors_that_are_not_finite():
    """No cosine is above NaN, so that every partner would be the closest."""
    outputs = np.ones((4, 2, 3))
    outputs[1, 0, 2] = np.nan
    with pytest.raises(AlbertError, match="must be finite numbers"):
        search_scores(outputs, np.arange(8).reshape(4, 2))


def test_texts_that_are_equally_close():
    """Of three partners with one vector each is first in a third of orders."""
    outputs = np.zeros((3, 2, 2))
    outputs[:, :, 0] = 1
    found = search_scores(outputs, np.arange(6).reshape(3, 2))
    assert found == {
        "mrr": pytest.approx((1 + 1 / 2 + 1 / 3) / 3),
        "recall_at_1": pytest.approx(1 / 3),
        "recall_at_10": 1,
        "ndcg_at_10": pytest.approx((1 + 1 / np.log2(3) + 1 / 2) / 3),
    }


def test_variants_of_a_text_are_the_same_text(tokenizer, tiny_vocab):
    """If the vocabulary does not tell them apart."""
    values = {"text": ["ba hens", " Bà  hens"], "pair": ["a", "A"]}
    task = ALL_TASKS["embedding"]
    target = task.target_of(tokenizer, table(**values))
    assert target.tolist() == [[0, 1], [0, 1]]
    other = ka.Tokenizer(tiny_vocab, keep_accents=True)
    target = task.target_of(other, table(**values))
    assert target.tolist() == [[0, 1], [2, 1]]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_negatives_in_a_list(tokenizer, tmp_path, suffix):
    """The same examples as with a column for each; as many in every row."""
    task = ALL_TASKS["embedding"]
    row = {"text": "a fox", "pair": "fox", "no": "a dog", "no2": "hens"}
    rows = [row, row | {"text": "a barn", "no2": "the dog"}]
    lists = [each | {"no": [each["no"], each["no2"]]} for each in rows]

    def read(rows, *names, skip_bad=False):
        path = write_rows(tmp_path / "rows.jsonl", rows)
        if suffix == "parquet":
            path = path.with_suffix(".parquet")
            parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        columns = TableColumns(pair="pair", negative=names)
        return task.read(path, columns, True, skip_bad)

    columns, list_of_two = read(rows, "no", "no2"), read(lists, "no")
    expected, found = (
        task.features(tokenizer, each, None, 40)
        for each in (columns, list_of_two)
    )
    assert found.choices == expected.choices == 4
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
    np.testing.assert_array_equal(found.target, expected.target)
    assert task.texts(list_of_two) == task.texts(columns)
    lists.insert(1, row | {"no": ["a dog"]})
    message = r":2: the negative in column `no` must have .* 2\. .*'a dog'"
    with pytest.raises(AlbertError, match=message):
        read(lists, "no")
    assert len(read(lists, "no", skip_bad=True)) == 2
    with pytest.raises(AlbertError, match=r":1: the negative .* is an empty"):
        read([row | {"no": []}], "no")


def test_a_label_for_each_word(tokenizer):
    """Its label stands at the first piece; a long text goes on in a new row."""
    names = ("O", "X")
    words = ["committee", "London"] * 9
    texts = {"text": [words, ["hens"]], "label": [["X", "O"] * 9, ["X"]]}
    examples = features("tokens", names, tokenizer, **texts)
    pieces = tokenizer.encode_batch(words)
    ends = np.cumsum([len(each) for each in pieces])
    fit = np.searchsorted(ends, 38, "right")
    assert fit < 18 and len(examples) > examples.count == 2
    assert examples.cut == 0
    row, target = examples.rows[0], examples.token_target[0]
    assert len(row.token_ids) == len(target) == ends[fit - 1] + 2
    starts = np.flatnonzero(target >= 0)
    assert target[starts].tolist() == ([1, 0] * 9)[:fit]
    assert starts.tolist() == [1, *(1 + ends[: fit - 1])]
    read = [id for each in examples.rows[:-1] for id in each.token_ids[1:-1]]
    assert read == [id for word in pieces for id in word], "every one"
    outputs = [np.zeros((len(each.token_ids), 2)) for each in examples.rows]
    outputs[0][starts[0], 1] = outputs[1][1, 1] = outputs[-1][1, 1] = 9
    logits, labels = ALL_TASKS["tokens"].logits_and_target(outputs, examples)
    assert logits.shape == (19, 2)
    assert labels.tolist() == [1, 0] * 9 + [1]
    found = ALL_TASKS["tokens"].held_out_loss(outputs, examples, names)
    # Three words have logits 0 and 9, of which one is no X; the others 0, 0.
    assert not labels[fit]
    sure, wrong = np.log1p(np.exp([-9.0, 9.0]))
    loss = (2 * sure + wrong + 16 * np.log(2)) / 19
    assert found == {"loss": pytest.approx(loss, abs=1e-6)}
    first, second = ALL_TASKS["tokens"].decode(outputs, examples, names)
    expected = ["O"] * 18
    expected[0] = expected[fit] = "X"
    assert first["prediction"] == expected
    assert second["prediction"] == ["X"]
    others = [np.array(["two", "hens"]), ("two", "hens")]  # as in tables
    check = ALL_TASKS["tokens"].checked_input
    assert check("text", others) == [["two", "hens"]] * 2
    with pytest.raises(AlbertError, match=r"`text` 1 has an empty word.* 2 of"):
        check("text", [["a"], ["b", " "]])


def test_what_is_cut_is_counted(tokenizer):
    """Of choices once for all of them; a row that just fits is whole."""
    for texts, pairs in (
        (["two hens and a fox", "a"], None),
        (["two hens", "a"], ["and a fox", "b"]),
    ):
        whole = text_rows(tokenizer, texts, pairs, 40)
        length = len(whole[0].token_ids)
        assert Features(text_rows(tokenizer, texts, pairs, length)).cut == 0
        assert Features(text_rows(tokenizer, texts, pairs, length - 1)).cut == 1
    long = "the committee met " * 9
    for quiz in (
        {"text": [long, "a"], "choices": [["b", "c"]] * 2},
        {"text": ["a", "a"], "choices": [["b", "c"], [long] * 2]},
    ):
        assert features("choice", None, tokenizer, **quiz).cut == 1
    words = features("tokens", ("O",), tokenizer, text=[["hen" * 30, "a"]])
    assert (len(words), words.count, words.cut) == (2, 1, 1)


@pytest.mark.parametrize(
    ("task", "good", "bad", "message"),
    [
        ("classification", "yes", "perhaps", "'perhaps'. Expected .* 'yes'"),
        ("multilabel", ["no", "yes"], ["no", "perhaps"], "label 'perhaps'"),
        ("tokens", "no yes", "no", "2 words, but 1 labels"),
        ("tokens", "no yes", "no perhaps", "unknown label 'perhaps'"),
        ("choice", "B", "C", "A to B"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, task, good, bad, message):
    rest = {"text": "a b", "choices": ["x", "y"]}
    rows = (rest | {"label": each} for each in (good, bad, good))
    path = write_rows(tmp_path / "x.jsonl", rows)
    names = None if task == "choice" else ("no", "yes")
    read = ALL_TASKS[task].read
    with pytest.raises(AlbertError, match=rf"x\.jsonl:2: .*{message}") as error:
        read(path, TableColumns(), True, names=names)
    assert "--skip-bad" in str(error.value)
    found = read(path, TableColumns(), True, skip_bad=True, names=names)
    assert found.lines == [1, 3]
    (fault,) = found.skipped
    assert re.search(rf"x\.jsonl:2: .*{message}", fault)
    # Nothing is asked of a label that is not read.
    assert len(read(path, TableColumns(), False)) == 3
    if task == "choice":
        assert found.values["label"] == [1, 1]


@pytest.mark.parametrize("rows_per_part", [1, None])
def test_a_row_with_more_choices_can_be_skipped(tmp_path, rows_per_part):
    """In whatever parts the file is read."""
    choices = [["x", "y"], ["x", "y", "z"], ["z", "x"]]
    rows = [{"text": "a", "choices": each, "label": "B"} for each in choices]
    path = write_rows(tmp_path / "x.jsonl", rows)
    task = ALL_TASKS["choice"]
    fields = task.fields(TableColumns(), labelled=True)
    parts = list(task.parts(path, fields, True, rows_per_part))
    assert [line for part in parts for line in part.lines] == [1, 3]
    (fault,) = [fault for part in parts for fault in part.skipped]
    assert "x.jsonl:2: 3 choices, where the first row has 2" in fault
    with pytest.raises(AlbertError, match=r"x\.jsonl:2: 3 choices"):
        list(task.parts(path, fields, False, rows_per_part))


def test_labels_of_a_table():
    names = ALL_TASKS["classification"].labels.of_table
    assert names(table(text=["a"] * 3, label=["b", "a", "b"])) == ("a", "b")
    with pytest.raises(AlbertError, match="two or more different labels"):
        names(table(text=["a"] * 2, label=["b", "b"]))
    unique = [str(i) for i in range(50)]
    with pytest.raises(AlbertError, match="--task regression"):
        names(table(text=unique, label=unique))
    with pytest.raises(AlbertError, match="one or more different labels"):
        ALL_TASKS["multilabel"].labels.of_table(table(text=["a"], label=[[]]))


@pytest.mark.parametrize(
    ("rows", "hidden_size", "batch_size", "epochs", "learning_rate"),
    [
        (100, 128, 16, 50, 3e-4),  # 7 steps an epoch: the most epochs
        (100, 256, 16, 50, 3e-4),
        (1_000, 768, 16, 16, 2e-5),  # 63 steps an epoch: 1,000 steps
        (2_490, 312, 16, 10, 1e-4),
        (10_000, 768, 32, 5, 2e-5),
        (100_000, 4_096, 32, 3, 2e-5),
    ],
)
def test_what_is_chosen(rows, hidden_size, batch_size, epochs, learning_rate):
    assert choose(rows, hidden_size) == {
        "batch_size": batch_size,
        "epochs": epochs,
        "learning_rate": learning_rate,
    }
    of_few = choose(rows, hidden_size, trains_few=True)["learning_rate"]
    assert of_few == pytest.approx(10 * learning_rate)


def test_how_wrong_a_label_is():
    """The probability of the wrong answer: of a label, or of its absence."""

    def given(target):
        return Features([Row(np.ones(3, "int32"), 3)] * len(target), target)

    found = ALL_TASKS["classification"].wrongness(
        list(np.log([[0.25, 0.75], [0.25, 0.75]])), given(np.array([0, 1]))
    )
    np.testing.assert_allclose(found, [0.75, 0])
    logit = np.log(0.8 / 0.2)  # a probability of 0.8
    found = ALL_TASKS["multilabel"].wrongness(
        [np.array([logit, -logit])] * 3,
        given(np.array([[1, 0], [0, 0], [1, 1]])),
    )
    np.testing.assert_allclose(found, [0, 0.8, 0.8])


EAST, NEAR, NORTH = [1.0, 0.0], [0.8, 0.6], [0.0, 1.0]


def test_what_does_not_count_as_another_text():
    """Neither the text itself, nor its partner in another example."""
    # The partner of the second text is the first text itself.
    vectors = np.array([[EAST, NEAR], [EAST, EAST]])
    assert search_scores(vectors, np.array([[0, 1], [2, 0]]))["mrr"] == 1
    # One text has two partners: the farther one is found first, too.
    vectors = np.array([[EAST, NEAR], [EAST, NORTH]])
    assert search_scores(vectors, np.array([[0, 1], [0, 2]]))["mrr"] == 1
    # Of two texts, the second one finds the partner of the first closer.
    assert search_scores(vectors, np.array([[0, 1], [3, 2]]))["mrr"] == 0.75


def test_ranks_of_many_texts(monkeypatch):
    """Also of those whose cosines are computed in a later part."""
    rng = np.random.default_rng(0)
    vectors, numbers = rng.normal(size=(9, 2, 4)), np.arange(18).reshape(9, 2)
    whole = search_scores(vectors, numbers)
    name = "keras_albert.tasks.vector_scores.RANKED_AT_ONCE"
    monkeypatch.setattr(name, 2)
    assert search_scores(vectors, numbers) == whole


def test_other_texts_are_found_first():
    """A further text counts, whatever the numbers of the others."""
    vectors, others = np.array([[EAST, NEAR]]), np.array([EAST, NORTH])
    for numbers in ([[1, 0]], [[0, 1]]):
        found = search_scores(vectors, np.array(numbers), others)
        assert found["mrr"] == 0.5


def test_pairs_of_equal_texts_are_ties():
    """Their cosines differ by rounding, and must not be ranked by that."""
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(30, 2, 16)).astype("float32")
    equal = np.arange(30) < 20
    vectors[equal, 1] = vectors[equal, 0]
    scores = np.where(equal, draw.choice([4, 5], 30), draw.integers(0, 4, 30))
    cosines = np.where(equal, 1.0, cosines_of([*vectors]))
    features = types.SimpleNamespace(target=scores[:, None])
    found = ALL_TASKS["similarity"].scores(list(vectors), features, None)
    expected = stats.spearmanr(scores, cosines).statistic
    assert found.values["spearman"] == pytest.approx(expected, abs=1e-6)

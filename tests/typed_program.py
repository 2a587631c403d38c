"""A program as users write it, for the type checker of `make lint`.

It never runs. Under mypy's strict rules it may not call a function that lacks
annotations, and `assert_type` says what each public name must be for a user.
"""

from typing import assert_type

import keras_albert as ka

config: ka.AlbertConfig = ka.VARIANTS["base_v2"].replace(
    hidden_dropout_prob=0.1
)
backbone = ka.AlbertBackbone(config)
assert_type(backbone, ka.AlbertBackbone)

tokenizer = ka.Tokenizer("vocab")
assert_type(tokenizer.encode("a text"), list[int])
assert_type(tokenizer.decode([2, 3]), str)
assert_type(tokenizer.fingerprint, str)
tokenizer.save("copy")

classifier = ka.AlbertForSequenceClassification(backbone, num_labels=2)
classifier.compile(ka.Lamb(ka.WarmupPolynomialDecay(1e-3, 10, 1)))
classifier.fit(["a text"], [1], epochs=1)
assert_type(classifier.config, ka.AlbertConfig)
assert_type(classifier.tokenizer, ka.Tokenizer | None)

encoder, vocabulary = ka.load_pretrained("model")
assert_type(encoder, ka.AlbertBackbone)
assert_type(vocabulary, ka.Tokenizer)

predictor = ka.Predictor.load("finetuned")
assert_type(predictor, ka.Predictor)

assert_type(ka.AlbertForMaskedLM.from_preset("model"), ka.AlbertForMaskedLM)
assert_type(ka.push("hf://org/name", predictor, dry_run=True), list[str])
ka.push("hf://org/name", ka.finetune("model", "train.csv"))

shards = ka.ShardSet.open("shards")
examples = ka.ExampleConfig(sequence_length=128)
batches = ka.pretraining_dataset(shards, examples, batch_size=8, seed=1)
held_out = ka.validation_dataset(shards, examples, batch_size=8)
masked_lm = ka.AlbertForMaskedLM(backbone)
masked_lm.fit(batches, validation_data=held_out)
filled = masked_lm.fill_mask(["a [MASK]"])
assert_type(filled[0][0][0].text, str)

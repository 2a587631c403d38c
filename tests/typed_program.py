"""A program as users write it, for the type checker of `make lint`.

It never runs. Under mypy's strict rules it may not call a function that lacks
annotations, and `assert_type` says what each public name must be for a user.
"""

from typing import assert_type

import keras_albert as ka

config: ka.AlbertConfig = ka.VARIANTS["base"].replace(hidden_dropout_prob=0.1)
backbone = ka.AlbertBackbone(config)
assert_type(backbone, ka.AlbertBackbone)

tokenizer = ka.Tokenizer("vocab")
assert_type(tokenizer.encode("a text"), list[int])
assert_type(tokenizer.decode([2, 3]), str)
assert_type(tokenizer.fingerprint, str)
tokenizer.save("copy")

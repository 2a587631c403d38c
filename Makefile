# Two commands on a fresh machine: `make demo` and `make test`.
# KERAS_BACKEND=tensorflow (default), jax or torch chooses the demo's backend.
# PYTHON names the interpreter that makes .venv; without it, the first of
# python3, python3.13, python3.12 and python3.11 that is supported makes it.

KERAS_BACKEND ?= tensorflow
TEST_BACKENDS ?= tensorflow jax torch
VENV := .venv
BIN := $(VENV)/bin
# --no-compile: Python compiles what it imports; pip would compile all that is
# installed, which takes longer than everything else that it does.
# $(call COMPILE,BACKEND,MODULES) imports the modules in the background, with that
# backend of Keras, so that Python writes their bytecode while pip, which uses
# one core, installs the next packages. Otherwise both processes of the tests
# would compile the same modules when they start. Errors have no consequence;
# they are in .venv/installed-*.log.
COMPILE = KERAS_BACKEND=$(1) $(BIN)/python -c \
          "$(foreach module,$(2),import $(module);)" > $@.log 2>&1 &
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
       --no-compile --constraint constraints.txt
# Twice quiet: setuptools warns of every editable installation.
EDITABLE := --quiet --editable
# The small wheel where there is one.
TENSORFLOW := tensorflow$(if $(filter Linux-x86_64,$(shell uname -sm | \
                tr ' ' -)),-cpu)

# JAX compiles slowly: keep all that it compiled.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/$(VENV)/jax-cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Images of containers often forbid Python to keep what it compiled: every
# process would compile TensorFlow again, which takes six seconds and more.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

.PHONY: demo test proof-tests test-tpu test-tpu-tensorflow proof \
        test-oldest bench docs lint format clean
# pip must not change one environment from two processes: -j has no effect.
.NOTPARALLEL:

demo: $(VENV)/installed-$(KERAS_BACKEND)
	KERAS_BACKEND=$(KERAS_BACKEND) $(BIN)/python examples/demo.py demo

# Two processes of one thread each: models this small lose more to threads
# than they gain. Most of JAX's time is compilation: without optimizing, and
# with XLA's older way of writing fused operations, which compiles faster.
# TensorFlow runs with oneDNN, as it does by itself on processors with
# AVX512-VNNI, AVX512-BF16 or AMX: TF_ENABLE_ONEDNN_OPTS=0 make test, without.
# `make proof` runs the tests that take long, which are marked so.
# The peers are installed before `dev`, and compiled meanwhile.
test proof-tests: export TF_ENABLE_ONEDNN_OPTS ?= 1
test proof-tests: export XLA_FLAGS += --xla_cpu_use_fusion_emitters=false
test: MARKS := not proof
proof-tests: MARKS := proof
proof-tests: export KERAS_ALBERT_PROOF := 1
# The backend of tests that are marked `on_torch`: another one if PyTorch is not
# tested.
RUNS_ON_TORCH := $(or $(filter torch,$(TEST_BACKENDS)),\
                   $(firstword $(TEST_BACKENDS)))
test proof-tests: $(foreach b,$(TEST_BACKENDS),$(VENV)/installed-$(b)) \
      $(VENV)/installed-peers $(VENV)/installed-dev
	@set -e; marks="$(MARKS)"; for backend in $(TEST_BACKENDS); do \
	  echo "== $$backend"; \
	  others="and not on_torch"; \
	  [ $$backend != $(RUNS_ON_TORCH) ] || others=; \
	  OMP_NUM_THREADS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	  KERAS_BACKEND=$$backend \
	    $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	      -m "$$marks $$others"; \
	  marks="$(MARKS) and not any_backend"; \
	done
proof-tests: $(VENV)/installed-proof

# Training steps compiled for TPU slices, without a TPU: minutes each.
test-tpu: $(VENV)/installed-tpu-compile $(VENV)/installed-dev
	KERAS_ALBERT_SLOW_COMPILE=1 KERAS_BACKEND=jax \
	  $(BIN)/python -m pytest -q tests/distributed/test_compile.py

# TensorFlow's kernels for TPUs, in an environment of their own of 2.4 GB, with
# Python 3.11 or 3.12.
test-tpu-tensorflow: .tpu-tensorflow/installed $(VENV)/installed-dev
	KERAS_ALBERT_TPU_PYTHON=$(CURDIR)/.tpu-tensorflow/bin/python \
	KERAS_BACKEND=tensorflow \
	  $(BIN)/python -m pytest -q tests/distributed/test_tpu_strategy.py

.tpu-tensorflow/installed: tpu/requirements-tf.txt
	@python=$$(sh tools/find_python.sh $(or $(PYTHON),python3.12 python3.11)) \
	  && set -x && "$$python" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Exported models, run by the libraries alone of older TensorFlows: 2 GB.
# TensorFlow Serving 2.15 to 2.19 links the first one's tensorflow-text.
# Then, one after the other: all tests of `make test` on TensorFlow and JAX, with
# more cases of each property and without what makes them quick (conftest.py);
# the tests that take long, on all backends; those of the oldest libraries that
# pyproject.toml allows; training steps compiled for TPUs.
OLDER := 2.12.1 2.16.1
OLDER_FOLDERS := $(OLDER:%=$(CURDIR)/.older/%)
proof: $(OLDER:%=.older/%/installed) $(VENV)/installed-proof
	KERAS_BACKEND=tensorflow OMP_NUM_THREADS=1 \
	KERAS_ALBERT_OLDER_TENSORFLOW=$$(echo $(OLDER_FOLDERS) | tr ' ' ':') \
	  $(BIN)/python -m pytest -q tests/e2e/test_without_python.py
	KERAS_ALBERT_PROOF=1 $(MAKE) test TEST_BACKENDS="tensorflow jax"
	$(MAKE) proof-tests test-oldest test-tpu test-tpu-tensorflow

# For Python 3.11 whichever runs here: no module of theirs is imported.
.older/%/installed: | $(BIN)/python
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --only-binary :all: --python-version 3.11 --target $(@D) \
	  tensorflow-cpu==$* tensorflow-text==$*
	@touch $@

# The lowest versions that pyproject.toml allows, with the lowest Python: 4 GB.
OLDEST := .oldest/bin/python -m
OLDEST_PIP := $(OLDEST) pip install --quiet --disable-pip-version-check \
              --no-compile --constraint constraints-oldest.txt
OLDEST_TESTS := private_apis optimizer checkpoints tables curves documents beam
test-oldest: .oldest/installed
	@set -e; marks=; for backend in $(TEST_BACKENDS); do \
	  echo "== $$backend, oldest libraries"; \
	  OMP_NUM_THREADS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	  KERAS_ALBERT_PROOF=1 KERAS_BACKEND=$$backend \
	    $(OLDEST) pytest -q -m "$$marks" \
	      $(OLDEST_TESTS:%=tests/unit/test_%.py); \
	  marks="not any_backend"; \
	done

.oldest/installed: constraints-oldest.txt pyproject.toml
	@python=$$(sh tools/find_python.sh python3.11) && set -x && \
	  "$$python" -m venv $(@D)
	$(OLDEST_PIP) $(TENSORFLOW) hypothesis pytest setuptools
	$(OLDEST_PIP) --no-deps keras-hub tensorflow-text
	$(OLDEST_PIP) --editable ".[beam,huggingface,jax,kaggle,litert,onnx,orbax]" \
	  --editable ".[parquet,plots,sentences,tensorboard,torch]"
	@touch $@

# Each benchmark takes further options from a variable, such as
# make bench BENCH="--backends jax --output a.json": BENCH (models),
# BENCH_EXAMPLES (pretraining data), BENCH_FINETUNE, BENCH_EXPORT (exported
# models), BENCH_REQUESTS (many clients) and BENCH_EMBEDDINGS (vectors of texts).
# Fine-tuning and vectors need SST-2 (KERAS_ALBERT_DATA).
bench: $(VENV)/installed-jax $(VENV)/installed-torch $(VENV)/installed-peers \
       $(VENV)/installed-dev
	$(PIP) onnxscript
	$(BIN)/python tests/benchmarks/bench_model.py $(BENCH)
	$(BIN)/python tests/benchmarks/bench_examples.py $(BENCH_EXAMPLES)
	$(BIN)/python tests/benchmarks/bench_finetune.py $(BENCH_FINETUNE)
	$(BIN)/python tests/benchmarks/bench_export.py $(BENCH_EXPORT)
	$(BIN)/python tests/benchmarks/bench_requests.py $(BENCH_REQUESTS)
	$(BIN)/python tests/benchmarks/bench_exits.py
	$(BIN)/python tests/benchmarks/bench_students.py
	$(BIN)/python tests/benchmarks/bench_embeddings.py $(BENCH_EMBEDDINGS)
	$(BIN)/python tests/benchmarks/bench_embeddings.py --onnx float32 \
	  $(BENCH_EMBEDDINGS)
	$(BIN)/python tests/benchmarks/bench_embeddings.py --onnx int8 \
	  $(BENCH_EMBEDDINGS)

# The documentation as a site in site/, of which no page needs a network. Links
# to what is not there, and names that have no docstring, are errors.
docs: $(VENV)/installed-docs
	$(BIN)/python docs/draw.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .older .oldest .tpu-tensorflow demo build site *.egg-info

# The pip that comes with Python 3.11 takes half as long again.
$(BIN)/python:
	@python=$$(sh tools/find_python.sh $(PYTHON)) && set -x && \
	  "$$python" -m venv $(VENV)
	$(PIP) --upgrade pip

# tensorflow-text asks for the large wheel: installed without asking.
$(VENV)/installed-tensorflow: constraints.txt pyproject.toml | $(BIN)/python
	$(PIP) $(TENSORFLOW) $(EDITABLE) ".[plots]"
	$(PIP) --no-deps tensorflow-text
	@$(call COMPILE,tensorflow,keras)
	@touch $@

$(VENV)/installed-jax: $(VENV)/installed-tensorflow
	$(PIP) jax
	@$(call COMPILE,jax,keras)
	@touch $@

# libtpu, a compiler here: 213 MB.
$(VENV)/installed-tpu-compile: $(VENV)/installed-jax
	$(PIP) --editable ".[tpu-compile]"
	@touch $@

$(VENV)/installed-torch: $(VENV)/installed-tensorflow
	$(PIP) torch
	@$(call COMPILE,torch,keras)
	@touch $@

# The package is already installed from this folder. Given its name, pip keeps
# it and adds the packages of the extra; `--editable .` would build it again.
$(VENV)/installed-dev: $(VENV)/installed-tensorflow
	$(PIP) "keras-albert[dev]"
	@touch $@

# What only tests of `make proof` need.
$(VENV)/installed-proof: $(VENV)/installed-dev
	$(PIP) "keras-albert[proof]"
	@touch $@

$(VENV)/installed-docs: constraints.txt pyproject.toml | $(BIN)/python
	$(PIP) $(EDITABLE) ".[docs]"
	@touch $@

# PyTorch comes first, as transformers, peft and sentence-transformers compute with
# it. keras-hub and tensorflow-serving-api ask for the large TensorFlow wheel,
# which --no-deps avoids.
$(VENV)/installed-peers: $(VENV)/installed-torch
	$(PIP) accelerate datasets kagglehub pandas peft polars psutil regex \
	  sentence-transformers tokenizers transformers
	$(PIP) --no-deps keras-hub tensorflow-serving-api
	@$(call COMPILE,tensorflow,peft sentence_transformers keras_hub)
	@touch $@

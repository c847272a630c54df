# `make demo` and `make test` need nothing but Python 3.10-3.13; they create .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DIGITS := recipes/examples/digits

TORCH := .venv-torch
OPENVINO := .venv-openvino
LIBRARIES := .venv-libraries

.PHONY: lock fuzz demo new-rule picture test test-all test-long test-qat test-device test-libraries figures lint format docs clean

demo: $(VENV)/.installed
	$(BIN)/qdqtool run $(DIGITS)/digits.onnx --recipe conv-int8 --samples $(DIGITS)/calibration.npz \
		--eval-samples $(DIGITS)/evaluation.npz --labels $(DIGITS)/labels.npy --out runs/demo

# Every file stays on one core, because its tests share what they built; slow files run in `test-all` only.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile

test: $(VENV)/.installed-test
	$(PYTEST) -m 'not slow'

test-all: $(VENV)/.installed-test
	$(PYTEST) -m 'not long'

# Cases that would not fit into the 40 minutes of CI: some twenty minutes.
test-long: $(VENV)/.installed-test
	$(PYTEST) -m long

# Quantization-aware training needs torch, which the rest does without; one thread keeps its results the same everywhere.
test-qat: $(TORCH)/.installed
	OMP_NUM_THREADS=1 $(TORCH)/bin/python -m pytest -q tests/qat

# The pipeline on a second provider: OpenVINO's build of onnxruntime, which takes the place of the CPU's and runs on any x86-64 processor.
test-device: $(OPENVINO)/.installed
	OMP_NUM_THREADS=1 $(OPENVINO)/bin/python -m pytest -q tests/runtime/test_second_provider.py

# The guide for users of Ultralytics, Hugging Face and timm, typed with these libraries; they install PyTorch for CUDA, 6 GB, so CI
# runs only the part for which `test-qat` has the library.
test-libraries: $(LIBRARIES)/.installed
	$(LIBRARIES)/bin/python -m pytest -q tests/qat/test_journeys.py tests/integrations

# The figures in the headers of the recipes and the tables of the guide on formats, measured again: some twenty minutes on one core.
figures: $(TORCH)/.installed
	OMP_NUM_THREADS=1 $(TORCH)/bin/python benchmarks/run_figures.py
	OMP_NUM_THREADS=1 $(TORCH)/bin/python benchmarks/figures.py recipes/qat-digits.yaml
	OMP_NUM_THREADS=1 $(TORCH)/bin/python benchmarks/figures.py recipes/qat-detector.yaml
	OMP_NUM_THREADS=1 $(TORCH)/bin/python benchmarks/figures.py recipes/qat-cifar10-resnet20.yaml
	OMP_NUM_THREADS=1 $(TORCH)/bin/python benchmarks/guide_figures.py

# The picture of README and the site: the page of the embedded example, as it is now.
picture: demo
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,1560 --screenshot=docs/assets/report.png file://$(CURDIR)/runs/demo/report.html

# MINUTES for all readers together; what goes wrong is kept in crashers/. Then valid networks through every command that writes a model.
MINUTES ?= 14
NETWORKS ?= 2000
SEED ?= 1000000
fuzz: $(VENV)/.installed-test
	$(BIN)/python benchmarks/fuzz.py --seconds $$(( $(MINUTES) * 60 / 14 )) --keep crashers
	$(BIN)/python benchmarks/valid.py --networks $(NETWORKS) --first $(SEED)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/style.py
	$(BIN)/python .ci/english.py

# The skeleton of a rule, its page and its test, with the next free code.
new-rule: $(VENV)/.installed-dev
	$(BIN)/python .ci/new_rule.py '$(NAME)'

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, strict: a broken link or a docstring that cannot be read ends it.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

# What is installed where nothing may change unseen: versions with hashes, for all systems and releases of Python, for the
# image alone, and the tools that build, check and describe a release.
LOCK = $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
lock: | $(BIN)/python
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) pyproject.toml --upgrade --universal --python-version 3.10 --extra rtx --extra sweep --extra postgres --extra cluster --extra png --extra parquet --extra dev --extra docs --output-file .ci/requirements.lock
	$(LOCK) pyproject.toml --upgrade --python-version 3.12 --python-platform x86_64-unknown-linux-gnu --extra rtx --output-file .ci/image.lock
	$(LOCK) .ci/tools.in --upgrade --universal --python-version 3.10 --output-file .ci/tools.lock

clean:
	rm -rf $(VENV) $(TORCH) $(OPENVINO) $(LIBRARIES) build dist runs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# TensorRT for RTX has wheels for Linux and Windows on x86-64 and arm64 Linux only; elsewhere everything but building works.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[rtx]'
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[rtx,sweep,postgres,cluster,png,parquet,test]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[rtx,sweep,postgres,cluster,png,parquet,dev]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[rtx,docs]'
	touch $@

$(TORCH)/.installed: pyproject.toml
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --upgrade pip
	$(TORCH)/bin/python -m pip install --quiet torch==2.13.0
	$(TORCH)/bin/python -m pip install --quiet torch==2.13.0 -e '.[rtx,qat-nvidia,test]' setuptools
	# trainers that the examples are for; their tests skip without them
	$(TORCH)/bin/python -m pip install --quiet torch==2.13.0 transformers accelerate lightning
	touch $@

$(LIBRARIES)/.installed: pyproject.toml
	$(PYTHON) -m venv $(LIBRARIES)
	$(LIBRARIES)/bin/python -m pip install --quiet --upgrade pip
	$(LIBRARIES)/bin/python -m pip install --quiet -e '.[rtx,yolo,test]' torch torchvision onnxscript timm transformers
	touch $@

# Builds of onnxruntime write the same folder, so the one of the CPU must go first.
$(OPENVINO)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OPENVINO)
	$(OPENVINO)/bin/python -m pip install --quiet --upgrade pip
	$(OPENVINO)/bin/python -m pip install --quiet -e '.[rtx,sweep,test]'
	$(OPENVINO)/bin/python -m pip uninstall --quiet --yes onnxruntime
	$(OPENVINO)/bin/python -m pip install --quiet onnxruntime-openvino==1.24.1
	touch $@

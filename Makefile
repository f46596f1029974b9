# Everything works in a fresh clone with only Python (>= 3.11) and make: each target sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
MODEL ?=
TIME ?= 10m
ARGS ?=
MODELS ?= 10000
LOGS ?= 10000
ARTIFACTS ?= 10000
KILLS ?= 500
HOSTILE ?= 200
CALLERS ?= 10m
FARM ?= 10m
SEED ?= 0
CLIENTS := com.github.asus4.onnxruntime@0.4.9 koffi@3.3.4 onnxruntime-node@1.30.0

BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

# Tests start Python hundreds of times: what is compiled once is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help tune test test-untimed test-timing test-all test-targets test-fast soak clients release lint format types docs bench golden clean

help:  ## Show this text
	@echo 'usage: make [target] [MODEL=model.onnx] [TIME=10m] [ARGS="--threads 2"] [PYTHON=python3.12]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

tune: $(RUN_STAMP)  ## Set up .venv and tune MODEL (default: the ResNet-50 that comes with onnx) for TIME
	$(BIN)/autotune tune $(MODEL) --time $(TIME) $(ARGS)

test: test-untimed test-timing  ## Set up .venv and run every test

test-untimed: $(DEV_STAMP)  ## Run the tests that measure no time, each with every value of its parameters
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not timing' --sample values $(ARGS)

test-all: $(DEV_STAMP)  ## The same with all combinations of values (half an hour on two cores)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not timing' $(ARGS)

test-timing: $(DEV_STAMP)  ## Run the tests that measure time, one by one
	$(BIN)/python -m pytest -m timing $(ARGS)

test-targets: $(DEV_STAMP)  ## Run the tests that depend on the CPU as on made-up ones
	for cpu in avx2 avx512 vnni bf16 amx; do \
	  $(BIN)/python -m pytest -q -n auto --dist worksteal -m 'target and not timing' \
	    --sample values --cpu $$cpu $(ARGS) || exit 1; \
	done

test-fast: $(DEV_STAMP)  ## Run one case of each test that is not slow
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not (slow or timing)' --sample one $(ARGS)

soak: $(DEV_STAMP)  ## Thousands of random and damaged models, logs and artifacts; killed sessions; many callers (hours)
	$(BIN)/python -m tests.fuzz.soak --models $(MODELS) --logs $(LOGS) --artifacts $(ARTIFACTS) \
	  --kills $(KILLS) --hostile $(HOSTILE) --seed $(SEED) $(ARGS)
	$(BIN)/python -m tests.fuzz.faults
	$(BIN)/python -m tests.fuzz.callers --time $(CALLERS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.farm --time $(FARM) --seed $(SEED)
	$(BIN)/python -m benchmarks.foreign

clients: $(DEV_STAMP)  ## Run programs of C++, Go, C# and Node that use ONNX Runtime, which npm brings (700 MB)
	mkdir -p build/clients
	cd build/clients && npm install --ignore-scripts --no-save --prefix . $(CLIENTS)
	$(BIN)/python -m pytest tests/network/test_network_clients.py $(ARGS)

lint: $(DEV_STAMP)  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV_STAMP)  ## Format the code, and mend what can be mended
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(DEV_STAMP)  ## Check types, strictly
	$(BIN)/mypy --strict autotune autotune_command.py autotune_operators benchmarks examples release

docs: $(DEV_STAMP)  ## Build the pages of docs/ into build/docs; a warning is an error
	$(BIN)/python -m benchmarks.results --check
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/docs $(ARGS)

golden: $(DEV_STAMP)  ## Rewrite tests/golden from what the code prints now (read the diff!)
	$(BIN)/python -m pytest -q --update-golden $(ARGS)

release: $(DEV_STAMP)  ## Make the commit, the distributions and the tag of VERSION (docs/releasing.md)
	@test -n '$(VERSION)' || { echo 'usage: make release VERSION=0.3.0'; exit 2; }
	$(BIN)/python -m release.prepare $(VERSION)
	$(BIN)/python -m release.build
	$(BIN)/python -m release.walk dist/autotune_compiler-$(VERSION)-*.whl $(ARGS)
	git tag -a v$(VERSION) -m 'autotune $(VERSION)'
	@echo 'next: git push origin HEAD v$(VERSION), which publishes it'

bench: $(DEV_STAMP)  ## Best kernels found for GEMM and convolutions (ResNet-50's), beside the FMA peak
	$(BIN)/python -m benchmarks.kernels $(ARGS)

clean:  ## Remove .venv and everything that tools left behind (logs stay)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'error: Python 3.11 or newer is needed'; \
	    echo 'hint: make PYTHON=python3.12 …'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo 'hint: on Debian and Ubuntu, apt-get install python3-venv'; rm -rf $(VENV); exit 1; }

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[tune]'
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(RUN_STAMP)

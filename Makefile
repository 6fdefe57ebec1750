# make run: train a backbone, evaluate it beyond its training length, write the report.
# make test: the whole test suite. Both make .venv first if need be.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := test
BACKBONE ?= transformer_conv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast lint format bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## make .venv with everything that training and the tests need

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch torchvision
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

run: setup ## train BACKBONE (transformer_conv), evaluate it, print where the report is
	$(BIN)/python train.py backbone=$(BACKBONE) preset=cpu name=$(BACKBONE)
	$(BIN)/python evaluate.py run=outputs/$(BACKBONE)

test: setup ## the whole test suite, one thread per test process
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-fast: setup ## without the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m 'not slow'

lint: setup ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## speed tables, as ratios in one run
	$(BIN)/python -m benchmarks

clean: ## remove .venv and caches; outputs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache

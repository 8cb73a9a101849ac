# Every target sets up its own virtual environment: on a fresh machine `make test` or `make demo` alone is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup lint format test demo digits bench docs fuzz kills smoke clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(READY)
	$(BIN)/pytest

demo: $(READY)
	$(BIN)/attnscope measure minilm --lengths 8:129:24 --samples 4 --certify 1e-6 --out demo --overwrite
	$(BIN)/attnscope report demo --open

# The network that ships with the package: a minute on one core.
digits: $(READY)
	$(BIN)/attnscope train --data digits --steps 1500 --batch 64 --rate 0.004 --eps 0.36 --half-width 1 --floor 0.22 --cap 0.25 \
		--value-cap 0.4 --watched 20 --control --out src/attnscope/nets/digits --overwrite

bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -q -W -b html docs build/docs

# Hostile command lines, files and calls; a failure is printed as the command that reproduces it.
CASES ?= 2000
SEED ?= 0
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --cases $(CASES) --seed $(SEED) --jobs 2

# Signals at random moments: no finished row is lost, and the same command completes.
kills: $(READY)
	$(BIN)/python -m fuzz.kills

# The core alone, installed into an environment of its own.
smoke: $(READY)
	$(BIN)/python -m fuzz.smoke

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

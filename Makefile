# Everything goes through .venv and constraints.txt; nothing is installed elsewhere.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS ?= dev

.PHONY: demo test lint types bench clean

demo: .venv/.ready
	$(BIN)/protea run examples/digits.toml --beside local

test: .venv/.ready
	$(BIN)/python -m pytest -n auto --dist loadgroup

lint: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.ready
	$(BIN)/mypy

bench: .venv/.ready
	$(BIN)/python benchmarks/rounds.py

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -exec rm -rf {} +

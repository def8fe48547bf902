# Everything goes through one environment and constraints.txt; nothing is installed elsewhere.
# torch comes by pip, which finds the build that is at hand; uv installs the rest in a third of pip's time.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
BIN := $(VENV)/bin
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
add = $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(2) --editable '.[$(1)]' \
	|| $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(1)]'

.PHONY: demo test nightly times network lint types lists docs package bench fuzz clean

demo: $(READY)
	$(BIN)/protea run examples/demo.toml --beside fedproto --beside local --beside alone --out runs/demo --resume --report
	$(BIN)/protea compare runs/demo runs/demo-fedproto runs/demo-local runs/demo-alone --clients

test: $(READY)
	$(BIN)/python -m pytest -n auto

nightly: $(READY)
	$(BIN)/python -m pytest -n auto -m 'not paper'
	$(BIN)/python fuzz/payloads.py --count $(or $(COUNT),200000) --seed $(or $(SEED),1)

times: $(READY)
	$(BIN)/python -m pytest -n auto --measure

network: $(READY)
	$(call add,flower)
	$(BIN)/python -m pytest -m network

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy --num-workers auto

# What `protea list` shows of what comes with Protea.
lists: $(READY)
	$(BIN)/python -m protea.cli.described

# The site, under docs/_build/html; warnings are errors.  Links to other hosts are not tried.
docs: $(READY)
	test -x $(BIN)/sphinx-build || { $(call add,docs); }
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo 'Open docs/_build/html/index.html'

# What would be published, under dist/: the sources, and a wheel made from them; both are checked.
package: $(READY)
	test -x $(BIN)/twine || { $(call add,package); }
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist > /dev/null
	$(BIN)/python -m twine check --strict dist/*

bench: $(READY)
	$(BIN)/python benchmarks/target.py --samples 2000 --rounds 3
	$(BIN)/python benchmarks/geometry.py --classes 10,100,1000
	$(BIN)/python benchmarks/scale.py --clients 100 --samples 2000 --rounds 2 --many 10000 --classes 200
	$(BIN)/python benchmarks/startup.py 3

fuzz: $(READY)
	$(call add,flower)
	$(BIN)/python fuzz/payloads.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)
	$(BIN)/python fuzz/files.py --count $(or $(COUNT),100000) --seed $(or $(SEED),1)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch uv
	$(call add,$(EXTRAS),--compile-bytecode)
	touch $@

clean:
	rm -rf .venv dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -exec rm -rf {} +

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check bench docs figures format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY)  ## calibrate a real network's probabilities and show the result
	$(BIN)/kcal demo

test: check  ## run the checks and the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

check: $(READY)  ## lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## speed and memory, as ratios in one run; TASKS=folder adds real tasks
	$(BIN)/python -m benchmarks $(if $(TASKS),--tasks $(TASKS))

docs: $(READY)  ## build the documentation into build/docs and check its links; nothing is fetched
	PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -j 2 -W --keep-going -d build/doctrees docs build/docs
	$(BIN)/python -m scripts.check_site build/docs

figures: $(READY)  ## draw the pictures and write the tables of the documents; RESULTS=folder adds docs/results.md
	$(BIN)/python -m scripts.figures $(if $(RESULTS),--results $(RESULTS))

format: $(READY)  ## format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything built
	rm -rf docs/gallery docs/api/generated docs/api/backreferences
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The environment is rebuilt only when its inputs change. Some systems ship Python
# without ensurepip; there the host's pip fills the environment instead.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kcal needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	@echo "Installing kcal and what it needs into $(VENV); the first time takes a few minutes."
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

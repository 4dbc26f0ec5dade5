PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One environment, filled in two steps: the package with its plots, then everything that the tests need.
CORE_READY := $(VENV)/.core
READY := $(VENV)/.ready
unexport PYTHONDONTWRITEBYTECODE # without bytecode every process compiles all modules anew

LOWEST := .venv-lowest
LOWEST_READY := $(LOWEST)/.ready
# What a user installs: the whole of src/. Left out are experiments, benchmarks, fuzzing, documents and pinned numbers.
CORE := $(addprefix tests/,kernels metrics losses projection embeddings datasets calibrators monitoring \
	persistence plots report deployment cli test_progress.py test_public_face.py test_threads.py test_validation.py)

.PHONY: help demo test test-lowest check bench docs figures dist release-check format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(CORE_READY)  ## calibrate a real network's probabilities and show the result
	$(BIN)/kcal demo

test: check  ## run the checks and the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-lowest: $(LOWEST_READY)  ## run the core tests with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto -W ignore::DeprecationWarning -W ignore::FutureWarning \
		-W "ignore:Attempted to insert a get_attr Node" -W "ignore:Node lifted_tensor" $(CORE)

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

figures: $(READY)  ## draw the figures and write the table of README.md
	$(BIN)/python -m scripts.figures

dist: $(READY)  ## build wheel and sdist, check them, and try the wheel without extras
	$(BIN)/python -m scripts.distribution

release-check: $(READY)  ## what a release needs beside the tests: versions, README numbers, site and distribution checks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto checks

format: $(READY)  ## format the code and fix what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and everything built
	rm -rf docs/gallery docs/api/generated docs/api/backreferences
	rm -rf $(VENV) $(LOWEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The environments are rebuilt only when their inputs change. Some systems ship Python
# without ensurepip; there the host's pip fills the environment instead.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kcal needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D) || \
		{ $(PYTHON) -m venv --clear --without-pip $(@D) && $(PYTHON) -m pip --python $(@D)/bin/python install pip; }
	@echo "Installing kcal $(2) into $(@D) …"
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet $(1)
	@touch $@
endef

$(CORE_READY): pyproject.toml constraints.txt
	$(call environment,--constraint constraints.txt --editable '.[plots]',with its plots)

$(READY): $(CORE_READY)
	$(call environment,--constraint constraints.txt --editable '.[all]',with everything that the tests need (some minutes))

$(LOWEST_READY): pyproject.toml constraints-lowest.txt
	$(call environment,--requirement constraints-lowest.txt --editable .,in the lowest versions)

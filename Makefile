# Every target builds what it needs: Python 3.10 or newer with venv, and make, are enough to start.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=

# The test workers and solvers use the cores already: more BLAS threads only get in their way.
export OPENBLAS_NUM_THREADS ?= 1

BIN := $(VENV)/bin
RUN := $(BIN)/python
ABLE := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))'
UNABLE := "PYTHON=$(PYTHON): must be Python 3.10 or newer with venv. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)"

# A worker gets neighbouring tests, which share what was fitted for them, and takes over from the other when it is done.
SHARED = -n $(JOBS) --dist worksteal

# Without compiled files every process of the tests, and there are many, reads the whole source anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo quick test lint check check-full bench docs clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed-demo ## a model, the attack on it, the accounting: report/index.html
	$(RUN) -m dptoolkit demo --out report

quick: $(VENV)/.installed-test ## seconds of tests of one solver or subject: make quick T=dp_ight; T=help lists them
	@$(RUN) -m tests.quick '$(T)' $(PYTEST_ARGS)

test: lint docs ## lint, the site, then every test but the slow ones
	$(RUN) -m pytest $(SHARED) $(PYTEST_ARGS)

lint: $(VENV)/.installed-test ## ruff, its formatter and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

check: $(VENV)/.installed-test ## what papers claim against what is true
	$(RUN) -m paper_checks

check-full: lint docs ## everything: slow tests, more examples, all paper checks
	DPTOOLKIT_SLOW=1 HYPOTHESIS_PROFILE=nightly $(RUN) -m pytest $(SHARED) $(PYTEST_ARGS)
	$(RUN) -m paper_checks --tier full

bench: $(VENV)/.installed-test ## times and ratios against peers
	$(RUN) -m benchmarks

# From scratch (-E): a page that was read before is not read again, and what is wrong with it would not be said twice.
docs: $(VENV)/.installed-docs ## the site, searchable, into docs/_build
	$(RUN) -m sphinx -E -W --keep-going -q -b html docs docs/_build
	@echo docs/_build/index.html

clean: ## everything that was built here, the virtual environment too
	rm -rf $(VENV) build dist report docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .numba_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra: a virtual environment that is there is reused, and brought up to date when the settings change.
$(VENV)/.installed-%: setup.cfg pyproject.toml
	@test -x $(RUN) || { $(PYTHON) $(ABLE) && $(PYTHON) -m venv $(VENV); } || { echo $(UNABLE) >&2; exit 1; }
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

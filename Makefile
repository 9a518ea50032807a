# make test   the environment, the package, the tests: all that is needed is Python 3.11 or newer and a C++ compiler
#
# PYTHON=python3.12          makes the environment with another interpreter
# VENV= PYTHON=/opt/bin/python   uses that interpreter as it is and installs nothing: for a GPU machine that has
#                            its own torch and triton (and what the lab and the tests need: CONTRIBUTING.md)
# WORKERS=4                  test processes; one on a machine with a GPU, which they would have to share
# TESTS="tests/test_nn.py -k repr"   only some tests
# DEMO=results/mine          where make demo leaves its records and its report; a new folder each time by default

PYTHON ?= python3
VENV ?= .venv
TESTS ?=
DEMO := $(or $(DEMO),results/demo-$(shell date +%Y-%m-%d-%H%M%S))
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
GPU := $(wildcard /dev/nvidia[0-9]* /dev/kfd)
WORKERS ?= $(if $(GPU),0,$(shell echo $$(($(CORES) < 8 ? $(CORES) : 8))))

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_CONSTRAINT = constraints.txt

ifeq ($(VENV),)
RUN := PYTHONPATH=$(CURDIR)/src $(PYTHON)
STAMP :=
PARALLEL :=
else
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
PARALLEL := -n $(WORKERS)
endif

.PHONY: help test demo check format wheel clean

help:
	@echo "make test    set up $(or $(VENV),nothing), run the tests (on the GPU where there is one)"
	@echo "make demo    check, measure a few small cases, leave a report and say where it is"
	@echo "make check   formatter, linter, type checker"
	@echo "make format  let the formatter and the linter mend what they can"
	@echo "make wheel   build dist/*.whl"
	@echo "make clean   remove everything that make made, but for results"
	@echo "Settings (PYTHON, VENV, WORKERS, TESTS, DEMO) are described at the top of the Makefile."

test: $(STAMP)
	$(RUN) -m pytest $(PARALLEL) $(TESTS)

demo: $(STAMP)
	@$(RUN) -m rownorm_command check --quick
	@$(RUN) -m rownorm_command bench --suite quick --out $(DEMO)
	@$(RUN) -m rownorm_command report $(DEMO)

check: $(STAMP)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(STAMP)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

wheel: $(STAMP)
	rm -rf build dist
	$(RUN) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean:
	rm -rf $(VENV) build dist traces src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip, because it finds local builds of torch; setuptools first, because the package is then built with it.
$(VENV)/.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rownorm needs Python 3.11 or newer: make PYTHON=...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet setuptools
	$(VENV)/bin/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

# make test   sets up an environment, installs the package and runs the tests. Needs Python 3.11 or newer, a C and a C++
#             compiler.
#
# PYTHON=python3.12          the interpreter to make the environment with
# VENV= PYTHON=/opt/bin/python   use that interpreter as it is and install nothing: for a GPU machine that has its own
#                            torch and triton (and the packages of the lab and the tests: CONTRIBUTING.md)
# TORCH=2.15                 the version of torch to install: one of constraints/torch-*.txt
# NEWEST=1                   make test-frameworks: the newest versions instead of those in constraints/frameworks.txt
# PAIR=2.15                  make test-versions: only this version of torch
# WORKERS=4                  test processes; without pytest-xdist on a machine with a GPU, which they would share
# TESTS="tests/test_nn.py -k repr"   only some tests
# BASE=v1.0                  make same-code: the revision to compare with; QUICK=1 compares every tenth case
# DEMO=results/mine          where make demo writes its records and its report; by default a new folder each time

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13
PAIR ?= 2.11 2.13 2.15
TESTS ?=
BASE ?= HEAD
QUICK ?=
NEWEST ?=
DEMO := $(or $(DEMO),results/demo-$(shell date +%Y-%m-%d-%H%M%S))
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
GPU := $(wildcard /dev/nvidia[0-9]* /dev/kfd)
# One more than cores, because many tests wait for a compiler, a browser or another process.
WORKERS ?= $(if $(GPU),0,$(shell echo $$(($(CORES) < 8 ? $(CORES) + 1 : 8))))
CONSTRAINTS := constraints/torch-$(TORCH).txt

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_CONSTRAINT = $(CONSTRAINTS)
# The tests start many processes, each of which would compile the sources again; so would each that runs tests.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(VENV),)
INTERPRETER := $(PYTHON)
RUN := PYTHONPATH=$(CURDIR)/src:$(CURDIR)/lab/src $(PYTHON)
STAMP :=
PARALLEL :=
BUILD := $(RUN)
BUILD_STAMP :=
else
INTERPRETER := $(VENV)/bin/python
RUN := $(INTERPRETER)
STAMP := $(VENV)/.stamp
PARALLEL := -n $(WORKERS) --dist worksteal
BUILD := .venvs/build/bin/python
BUILD_STAMP := .venvs/build/.stamp
endif
# In every environment that make created. An environment of yours that make only installed into has none, and make clean
# leaves it alone.
MARKER := .made-by-make
# $(call environment,FOLDER): a virtual environment there, with the marker if there was nothing before.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rownorm needs Python 3.11 or newer: make PYTHON=...")'
	@test -e $(1) || { mkdir -p $(1) && touch $(1)/$(MARKER); }
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

.PHONY: help test test-all test-versions test-frameworks same-code demo learn check format docs wheel release clean

help:
	@echo "make test           set up $(or $(VENV),nothing), run the tests (on the GPU where there is one)"
	@echo "make test-all       the same with the exhaustive tests: before a change to kernels is called done"
	@echo "make test-versions  the tests with every supported pair of torch and triton, each in .venvs/torch-*"
	@echo "make test-frameworks  the tests of integrations with the real packages: 2 GB in .venvs/frameworks"
	@echo "make same-code      compare machine code and plans with those of another revision (BASE=...)"
	@echo "make demo           check, measure a few small cases, write a report and print its path"
	@echo "make learn          start the first exercise of the course (docs/course.md)"
	@echo "make check          formatter, linter, type checker"
	@echo "make format         apply the fixes of the formatter and the linter"
	@echo "make docs           build the site of the documents and check its links: site/index.html"
	@echo "make wheel          build dist/*.whl, library and lab; needs no environment but a small one of its own"
	@echo "make release        build wheels and sdists into dist/, check their metadata, install and try each wheel"
	@echo "make clean          remove everything that make created, except results/ and learn/, which have your work"
	@echo "Settings (PYTHON, VENV, TORCH, PAIR, NEWEST, WORKERS, TESTS, BASE, DEMO) are described at the top of the Makefile."

test: $(STAMP)
	$(RUN) -m pytest $(PARALLEL) $(TESTS)

test-all: $(STAMP)
	$(RUN) -m pytest $(PARALLEL) --exhaustive $(TESTS)

# Every pair is tested, also after one has failed.
test-versions:
	@failed=; \
	for pair in $(PAIR); do \
	  echo "== torch $$pair"; \
	  $(MAKE) --no-print-directory test VENV=.venvs/torch-$$pair TORCH=$$pair || failed="$$failed $$pair"; \
	done; \
	test -z "$$failed" || { echo "tests failed with torch$$failed"; exit 1; }

# Here a framework that is missing is an error, not a skip.
test-frameworks: $(STAMP) .venvs/frameworks/.stamp
	ROWNORM_FRAMEWORKS=1 PYTHONPATH=$(CURDIR)/.venvs/frameworks:$(CURDIR)/src:$(CURDIR)/lab/src \
	  $(INTERPRETER) -m pytest $(or $(TESTS),tests/integrations lab/tests/fib/test_for_flashinfer.py)

same-code: $(STAMP)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	base=$$(git rev-parse --verify "$(BASE)^{commit}") && \
	git clone --quiet --shared --no-checkout . "$$folder/base" && \
	git -C "$$folder/base" checkout --quiet --detach "$$base" && \
	for tree in base new; do \
	  source=$$folder/base/src; test $$tree = base || source=$(CURDIR)/src; \
	  ROWNORM_TABLES= PYTHONPATH=$$source $(INTERPRETER) tools/same_plans.py write "$$folder/$$tree-plans.json" $(if $(QUICK),--quick) && \
	  ROWNORM_TABLES= PYTHONPATH=$$source $(INTERPRETER) tools/same_code.py dump --out "$$folder/$$tree-code.jsonl" $(if $(QUICK),--every 10) \
	  || exit 1; \
	done && \
	{ $(INTERPRETER) tools/same_plans.py compare "$$folder/base-plans.json" "$$folder/new-plans.json"; plans=$$?; \
	  $(INTERPRETER) tools/same_code.py compare "$$folder/base-code.jsonl" "$$folder/new-code.jsonl" && test $$plans = 0; }

demo: $(STAMP)
	@$(RUN) -m rownorm_lab check --quick
	@$(RUN) -m rownorm_lab bench --suite quick --out $(DEMO)
	@$(RUN) -m rownorm_lab report $(DEMO)

learn: $(STAMP)
	@$(RUN) -m rownorm_lab learn start 1
	@$(if $(VENV),echo "First: source $(VENV)/bin/activate    (so that python and rownorm are those of $(VENV))")

check: $(STAMP)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(STAMP)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

wheel: $(BUILD_STAMP)
	rm -rf build lab/build dist
	$(BUILD) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./lab
	@ls dist/*.whl

# From the sdists, so that these are complete. The wheels are tried with the torch of $(INTERPRETER).
release: $(STAMP) .venvs/release/.stamp
	rm -rf build lab/build dist
	.venvs/release/bin/python -m build --no-isolation --outdir dist . > /dev/null
	.venvs/release/bin/python -m build --no-isolation --outdir dist lab > /dev/null
	.venvs/release/bin/python -m twine check --strict dist/*
	$(INTERPRETER) tools/try_wheels.py dist

docs: .venvs/docs/.stamp
	.venvs/docs/bin/python tools/docs_site.py write build/docs
	.venvs/docs/bin/python -m zensical build --clean --strict
	.venvs/docs/bin/python tools/docs_site.py check site

clean:
	rm -rf build lab/build dist site .cache src/*.egg-info lab/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find examples lab src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
	@left=; for folder in $(VENV) .venvs/*; do \
	  if test -e $$folder/$(MARKER); then echo "rm -rf $$folder"; rm -rf $$folder; \
	  elif test -e $$folder; then echo "make did not create $$folder: remove it yourself if nothing needs it"; left=1; \
	  fi; \
	done; \
	rmdir .venvs 2>/dev/null; test -z "$$left"

# pip rather than another installer, because it finds local builds of torch. setuptools first, because it builds the
# packages. flashinfer-bench without its dependencies, because they include 421 MB that it does not need; the extra fib
# has the others.
$(VENV)/.stamp: pyproject.toml lab/pyproject.toml constraints/common.txt $(CONSTRAINTS)
	$(call environment,$(VENV))
	$(VENV)/bin/python -m pip install --quiet setuptools
	$(VENV)/bin/python -m pip install --quiet --no-build-isolation --editable '.[dev]' --editable './lab[dev]'
	$(VENV)/bin/python -m pip install --quiet --no-deps flashinfer-bench
	@touch $@

# Neither a wheel nor the site needs torch.
PACKAGES_build := setuptools
PACKAGES_release := build setuptools twine
PACKAGES_docs := zensical

# A folder of packages for Python's path, not an environment: without what they require, because the versions of torch
# and transformers that they ask for differ.
.venvs/frameworks/.stamp: constraints/frameworks.txt $(STAMP)
	rm -rf $(@D) && mkdir -p $(@D) && touch $(@D)/$(MARKER)
	sed '$(if $(NEWEST),s/==.*//)' $< > $(@D)/requirements.txt
	PIP_CONSTRAINT= $(INTERPRETER) -m pip install --quiet --no-deps --target $(@D) --requirement $(@D)/requirements.txt
	@touch $@

.venvs/%/.stamp: constraints/common.txt $(CONSTRAINTS)
	$(call environment,.venvs/$*)
	.venvs/$*/bin/python -m pip install --quiet $(PACKAGES_$*)
	@touch $@

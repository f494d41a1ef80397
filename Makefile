# `make lab` opens the lessons, `make test` runs the tests; both set everything up first. `make help` lists the rest.
#
# PYTHON       the interpreter that .venv is made with             make lab PYTHON=python3.12
# TORCH_INDEX  package index that torch comes from: the address that torch's install page shows for a CPU-only
#              or CUDA build; remembered in .venv; empty: back to pip's own setting     make lab TORCH_INDEX=...
# LAB_ARGS     further arguments for JupyterLab                    make lab LAB_ARGS=--no-browser
# ROOM         a folder of tests                               make test-all ROOM=tests/lessons/cliff
# PYTEST_ARGS  further arguments for pytest                        make test PYTEST_ARGS='-k ranks'

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# written last, so that a failed install leaves none; holds the folder that labkit is installed from
STAMP := $(VENV)/installed
TORCH_FROM := $(or $(shell cat $(VENV)/torch-index 2>/dev/null),default)
TORCH_INDEX ?= $(filter-out default,$(TORCH_FROM))
INDEX := $(or $(TORCH_INDEX),default)
PIP := $(PY) -m pip --disable-pip-version-check
export PIP_USER := 0
# uv installs without bytecode: where this keeps Python from writing it, every kernel and every rank compiles torch anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup lab test test-all gpu notebooks text map book break-it check lock clean FORCE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	@echo; sed -n '/^# PYTHON /,/^$$/s/^# /  /p' Makefile

setup: $(STAMP) ## .venv with the locked packages and labkit, once

ifneq ($(INDEX) $(CURDIR),$(TORCH_FROM) $(shell cat $(STAMP) 2>/dev/null))
$(STAMP): FORCE
endif
$(STAMP): requirements.lock pyproject.toml oddrank/pyproject.toml
	@rm -f $@
	@if ! $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  command -v $(PYTHON) >/dev/null || \
	    { echo "$(PYTHON) was not found: install Python 3.11 or newer, or name one, as in: make PYTHON=python3.12" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1), and labkit needs 3.11 or newer: name one, as in: make PYTHON=python3.12" >&2; exit 1; }; \
	  $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "$(PYTHON) cannot make virtual environments: install its venv package (python3-venv on Debian and Ubuntu)" >&2; exit 1; }; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	@case "$(TORCH_INDEX)" in ''|*://*|/*) ;; *) \
	  echo "TORCH_INDEX must be the address of a package index, got $(TORCH_INDEX)" >&2; exit 1;; esac
	@echo "Installing into $(VENV): about a minute the first time."
	$(PY) tools/install.py $(addprefix --torch-index ,$(TORCH_INDEX)) $(if $(filter-out $(TORCH_FROM),$(INDEX)),--again)
	@echo '$(INDEX)' > $(VENV)/torch-index
	@$(PY) -m labkit.pace
	@echo '$(CURDIR)' > $@

lab: setup ## JupyterLab on the first lesson
	$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS) notebooks/00_start_here.ipynb

# three on two cores: one of them computes while the tests of the others wait; four take as long, and more memory
test: setup ## what CI runs, in three processes (PYTEST_ARGS='-n 0': in one): what guards users (tests/README.md)
	$(PY) -m pytest -m "not full" -n 3 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

test-all: setup ## all tests; ROOM=oddrank/tests/look: those of one folder
	$(PY) -m pytest -n 3 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS) $(ROOM)

gpu: setup ## on a machine with GPUs: what only they can tell, in one folder to be sent back
	$(PY) -m tools.gpu

# mypy runs beside the tests: it uses one core, and they wait now and then
check: setup ## formatting, lint, types and the fast tests: minutes
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy & types=$$!; \
	  $(PY) -m pytest -q -m "not slow and not kernel and not browser" -n 2 --dist loadscope --no-loadscope-reorder \
	    $(PYTEST_ARGS); tests=$$?; \
	  wait $$types && exit $$tests

notebooks: setup ## execute the lessons and save their outputs (NOTEBOOKS=... for some of them)
	$(PY) -m tools.notebooks execute $(NOTEBOOKS)

text: setup ## the lessons as Python files, without outputs, to review or to search: build/text (NOTEBOOKS=... for some)
	@mkdir -p build/text
	@for one in $(or $(NOTEBOOKS),notebooks/[0-9]*.ipynb); do \
	  $(PY) -m jupytext --quiet --to py:percent --opt notebook_metadata_filter=-all --opt cell_metadata_filter=tags,-all \
	    --output build/text/$$(basename $$one .ipynb).py $$one || exit 1; done
	@echo build/text

map: setup ## the map of the lessons, and what else is generated in README and docs
	$(PY) -m tools.course

book: setup ## the lessons as a website, from the outputs they were saved with: build/book/index.html
	rm -rf build/book
	$(PY) -m sphinx -W --keep-going -q -d build/doctrees -E -c docs/book notebooks build/book
	@echo "build/book/index.html"

break-it: setup ## the break-it tests of lesson 15, three runs each; exit code 1 where one does not end as it has to
	$(PY) -m torch.distributed.run --standalone --nproc-per-node 2 data/delivered/break_it.py

lock: ## requirements.lock anew after a change of pyproject.toml; UPGRADE=1 takes the newest versions
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install $(if $(UPGRADE),,-c requirements.lock) 'setuptools>=77' ./oddrank '.[dev]'
	@# without what belongs to one build of torch (its suffix, CUDA packages): pip adds what the chosen build needs
	{ echo '# Every package of the environment, pinned. Made by `make lock`; environment.yml repeats the direct ones.'; \
	  build/lock/bin/python -m pip freeze --all --exclude pip --exclude labkit --exclude oddrank \
	    | sed -e 's/+[^+]*$$//' -e '/^nvidia-/d' -e '/^triton/d' -e '/^cuda-/d'; } > build/requirements.lock
	mv build/requirements.lock requirements.lock

clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) build *.egg-info oddrank/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find oddrank labkit course ledger tests notebooks -name __pycache__ -prune -exec rm -rf {} +

# make demo | make test | make slow | make lint | make types | make docs | make dist | make clean
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test slow lint types docs dist clean

demo: .venv/ready
	.venv/bin/basinet compare digits --out runs/digits
	.venv/bin/basinet report runs/digits

# two workers with one thread each: faster than one worker with two threads, and steady on a busy machine
test: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m "not slow"

slow: .venv/ready
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m slow

lint: .venv/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: .venv/ready
	$(PY) -m mypy

# static pages in site/, which open from the disk without a network; warnings are errors
docs: .venv/docs
	$(PY) docs/tools/build.py

# a wheel and a source distribution in dist/, each installed and tried in an empty environment
dist: .venv/ready
	$(PY) -m pip install --quiet -c constraints.txt build
	rm -rf dist
	$(PY) -m build
	./tests/smoke.sh dist/*.whl dist/*.tar.gz

.venv/docs: .venv/ready
	$(PY) -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

# torch is named with its exact version, because a looser request may fetch gigabytes of CUDA packages.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet -c constraints.txt torch==2.13.0
	$(PY) -m pip install --quiet -c constraints.txt -e ".[all,plot,dev]"
	touch $@

clean:
	rm -rf .venv runs build dist site .cache src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

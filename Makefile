# Two commands do all set-up: `make train` and `make test`. CONTRIBUTING.md says how to run one kind of test alone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := python/requirements-dev.txt
DENY_VERSION := 0.20.2
DENY_CHECK := check bans licenses sources
TOOLS := $(CURDIR)/.tools
export PATH := $(TOOLS)/bin:$(PATH)
# pip's own news and compiled files of an older Python help nobody here.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help train test lint bench bench-peers clean wheel lint-rust lint-python lint-deny-installed lint-deny \
	test-rust test-python test-mpi test-mpi4py test-vendor test-peers toolchain launchers slurm network vendor

# Where `make install` puts the C library: $(DESTDIR) before it is the root of a package that is being made.
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR ?= $(PREFIX)/lib
CARGO_PROFILE ?= release

.PHONY: install uninstall c-tools test-large test-tsan bench-check

help:
	@echo "make train   build, install into .venv, and train the digits example in two processes"
	@echo "make test    everything that .ci/run runs"
	@echo "make test-peers  the real torchrun, and tensors of torch, in an environment of its own (4 GB)"
	@echo "make lint    formatting, lints, types and licences, without running a test"
	@echo "make bench   measure this machine"
	@echo "make bench-peers BENCH=DIR   compare with the peers that a bench in DIR starts, see docs/performance.md"
	@echo "make install the C library, its header, uform.pc and the command, below PREFIX ($(PREFIX)); also uninstall"
	@echo "make clean   remove everything that was built"

train: wheel
	$(BIN)/uform launch --processes 2 examples/train_digits.py

test: toolchain launchers slurm network c-tools vendor lint-rust test-rust test-mpi test-mpi4py wheel lint-python test-python \
	lint-deny-installed

lint: toolchain lint-rust wheel lint-python lint-deny

bench: wheel
	$(BIN)/python benches/import_time.py
	cargo bench --locked --bench rendezvous_scale -- $(CURDIR)/target/rendezvous_scale.svg
	cargo bench --locked --bench bootstrap --bench all_reduce --bench latency --bench dispatch --bench kernels

# BENCH is the folder of a bench whose run_peers.py takes plug-ins; its own variables say where the peers are.
PEERS ?= uform,uform-arena,ompi5-best,ompi4-best,mpich-bind,impi-best
SIZES ?= 8,4K,64K,1M,16M,64M,256M
bench-peers: wheel
	@[ -f "$(BENCH)/run_peers.py" ] || \
		{ echo "make bench-peers needs BENCH=DIR, the folder of run_peers.py" >&2; exit 1; }
	BENCH_PLUGIN=$(CURDIR)/benches/peers/plugin.py BENCH_UFORM=$(CURDIR)/$(VENV) \
		$(BIN)/python $(BENCH)/run_peers.py --rounds 5 --spread --peers $(PEERS) -- --sizes $(SIZES) --budget 0.1

# What check and record add to a call, by a second build of the library without them.
bench-check:
	$(PYTHON) benches/check.py

clean:
	cargo clean
	rm -rf $(VENV) $(MPI_VENV) $(PEERS_VENV) $(TOOLS) $(VENDOR) dist checkpoints .mypy_cache .ruff_cache .pytest_cache

toolchain:
	@cargo fmt --version >/dev/null && cargo clippy --version >/dev/null || \
		{ echo "rustfmt and clippy are missing: run 'rustup component add rustfmt clippy'" >&2; exit 1; }

# What runs under a real mpirun, or is built with an MPI, is skipped where these are missing, unless UFORM_REQUIRE names it.
MPI_PACKAGES := openmpi-bin mpich libopenmpi-dev libmpich-dev libclang-dev
# The feature mpi is built by a compiler of that MPI, and by libclang, which reads its header.
has-mpi = command -v mpicc.$(1) >/dev/null && { [ -n "$${LIBCLANG_PATH:-}" ] || \
	ls /usr/lib/llvm*/lib/libclang*.so* >/dev/null 2>&1 || ls /usr/lib*/libclang*.so* >/dev/null 2>&1; }
launchers:
	@if ! { $(call has-mpi,openmpi); } || ! { $(call has-mpi,mpich); } || \
		! command -v mpirun.openmpi >/dev/null || ! command -v mpiexec.hydra >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq \
				--no-install-recommends $(MPI_PACKAGES) >/dev/null; \
		else \
			echo "no tests under mpirun: they need $(MPI_PACKAGES) (Debian: apt-get install $(MPI_PACKAGES))"; \
		fi; \
	fi

# The tests under a real Slurm start and stop their own controller and nodes; those of the packages are not used.
# libpmix-dev: the plugin for --mpi=pmix opens the unversioned name of the library.
SLURM_PACKAGES := slurm-wlm slurm-wlm-basic-plugins munge libpmix-dev iproute2
slurm:
	@if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null || \
		! ls /usr/lib/*/pmix2/lib/libpmix.so >/dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install \
				-y -qq --no-install-recommends $(SLURM_PACKAGES) >/dev/null; \
		else \
			echo "no tests under Slurm: they need root and $(SLURM_PACKAGES) (Debian: apt-get install $(SLURM_PACKAGES))"; \
		fi; \
	fi

# --- Rust ---------------------------------------------------------------------------------------------------------

# Tests of several hosts make network namespaces by `ip`, which a small Debian lacks.
network:
	@if ! command -v ip >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq iproute2 >/dev/null; \
	fi

lint-rust:
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	cargo clippy --quiet --locked --package uform --all-targets --no-default-features -- -D warnings
	if $(call has-mpi,openmpi); then \
		$(call with-mpi,openmpi) cargo clippy --quiet --locked --package uform --all-targets --all-features -- -D warnings; \
	else \
		echo "mpicc.openmpi or libclang is not installed: the feature mpi is not checked"; \
	fi
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --workspace --no-deps

# nextest runs no documentation tests, so cargo runs those either way.
test-rust:
	if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked; \
		cargo test --locked --doc; \
	else \
		cargo test --locked; \
	fi

# Arrays of more than 2^31 elements, from Rust, C and Python: 9 GB of memory, and some minutes.
test-large: wheel
	cargo test --locked --test uform conformance::large -- --ignored --nocapture
	cargo test --locked --package uform-c --test uform_c large:: -- --ignored --nocapture
	$(BIN)/python -m pytest -m large tests/python

# ThreadSanitizer over members that are threads, executors and deferred calls, with a standard library that it sees too. The toolchain
# is the stable one; RUSTC_BOOTSTRAP lets it take the two switches. Build scripts and macros are built without. What members tell each
# other over sockets is left out: the sanitizer does not see those system calls, and would take what they order for races.
# First comes a test that races on purpose: that nothing is reported means something only where that race is.
TSAN_HOST = $(shell rustc -vV | sed -n 's/^host: //p')
TSAN_TESTS := executor:: communicator:: recorder:: sys::shared sys::crew trainer::tests conformance::communicator::threads \
	conformance::communicator::arrays conformance::arrays conformance::deferred conformance::trainer::threads \
	conformance::sanitizer conformance::threads::members
TSAN_RACE := conformance::sanitizer::members_that_do_not_wait_race
TSAN = RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
	TSAN_OPTIONS="halt_on_error=1" CARGO_TARGET_DIR=$(abspath $(TARGET))/tsan CARGO_INCREMENTAL=0 \
	cargo test --locked --package uform -Zbuild-std --target $(TSAN_HOST)
test-tsan:
	@[ -f "$$(rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] || \
		{ echo "make test-tsan builds the standard library: run 'rustup component add rust-src'" >&2; exit 1; }
	$(TSAN) --lib --test uform --no-run
	@report=$$($(TSAN) --test uform -- --ignored --exact $(TSAN_RACE) 2>&1) && ended=well || ended=badly; \
	if [ $$ended = well ] || ! grep -q 'WARNING: ThreadSanitizer: data race' <<< "$$report" || \
		! grep -q 'tests/conformance/sanitizer.rs' <<< "$$report"; then \
		echo "$$report" >&2; \
		echo "$(TSAN_RACE) races on purpose, and ThreadSanitizer did not report it: its silence would mean nothing" >&2; \
		exit 1; \
	fi; \
	echo "the race on purpose is reported: $$(grep -m 1 '^SUMMARY: ' <<< "$$report")"
	$(TSAN) --lib --test uform -- --skip signal_model --skip members_of_several_hosts $(TSAN_TESTS)

# One build and one target folder for each MPI: handles of one are not those of the other.
TARGET = $(or $(CARGO_TARGET_DIR),target)
with-mpi = MPICC=mpicc.$(1) CARGO_TARGET_DIR=$(TARGET)/$(1)

# UFORM_REQUIRE with the word `mpi` turns a missing MPI into a failure.
test-mpi:
	@for mpi in openmpi mpich; do \
		if $(call has-mpi,$$mpi); then \
			$(call with-mpi,$$mpi) cargo test --quiet --locked --package uform --features mpi --test mpi member::; \
		elif [[ ",$${UFORM_REQUIRE:-}," == *,mpi,* ]]; then \
			echo "UFORM_REQUIRE names mpi: no mpicc.$$mpi, or no libclang" >&2; exit 1; \
		else \
			echo "skipped: mpicc.$$mpi or libclang is not installed"; \
		fi; \
	done

# mpi4py beside uform, in an environment of its own, with the package as `pip install` builds it; not optimised, to be quick.
# What mpi4py calls libmpi.so.12 is MPICH: it is the other library, which must be refused.
MPI_VENV := .venv-mpi
MPI_PYTHON = $(CURDIR)/$(MPI_VENV)/bin/python
MPI4PY_VERSION := 4.1.2
test-mpi4py: $(BIN)/maturin
	@if ! command -v mpicc.openmpi >/dev/null || ! command -v mpirun.openmpi >/dev/null; then \
		[[ ",$${UFORM_REQUIRE:-}," != *,mpi,* ]] || { echo "UFORM_REQUIRE names mpi: no mpicc.openmpi" >&2; exit 1; }; \
		echo "skipped: mpi4py beside uform needs Open MPI"; exit 0; \
	fi; \
	[ -x $(MPI_PYTHON) ] || $(PYTHON) -m venv $(MPI_VENV); \
	$(MPI_PYTHON) -m pip install --quiet mpi4py==$(MPI4PY_VERSION); \
	MPICC=mpicc.openmpi CARGO_TARGET_DIR=$(abspath $(TARGET))/openmpi \
		MATURIN_PEP517_ARGS="--locked --features mpi --profile dev --auditwheel skip" \
		$(MPI_PYTHON) -m pip install --quiet --no-deps --force-reinstall ./python; \
	for case in before after handed; do \
		timeout 120 mpirun.openmpi --oversubscribe --allow-run-as-root -n 4 $(MPI_PYTHON) tests/mpi/interop.py $$case; \
	done; \
	found=$$(timeout 120 mpirun.openmpi --oversubscribe --allow-run-as-root -n 1 $(MPI_PYTHON) -m uform doctor || true); \
	grep -q 'MPI [0-9.]* (linked to) at .*/libmpi\.so' <<< "$$found" || { echo "$$found" >&2; exit 1; }; \
	library=$$(ls /usr/lib/*/libmpich.so.12 2>/dev/null | head -n 1); \
	if [ -n "$$library" ]; then \
		mkdir -p $(TARGET)/openmpi/other && ln -sf $$library $(TARGET)/openmpi/other/libmpi.so.12; \
		MPI4PY_MPIABI=mpich LD_LIBRARY_PATH=$(abspath $(TARGET))/openmpi/other \
			timeout 120 $(MPI_PYTHON) tests/mpi/interop.py other; \
	fi

# NVIDIA's own libraries, unpacked from their wheels (0.8 GB to load, 1.3 GB on disk); tests of them need no GPU and are skipped
# without them, unless UFORM_REQUIRE names nccl.
VENDOR := .vendor
NCCL_WHEELS := nvidia-nccl-cu12==2.18.3 nvidia-nccl-cu12==2.26.2 nvidia-nccl-cu13==2.32.3
# The compiler of the package's PTX, and one that knows newer GPUs.
NVRTC_WHEELS := nvidia-cuda-nvrtc-cu12==12.0.76 nvidia-cuda-nvrtc-cu12==12.9.86
vendor:
	@for wheel in $(NCCL_WHEELS) $(NVRTC_WHEELS); do \
		case $$wheel in \
			*nvrtc*) name=nvrtc file=nvidia/cuda_nvrtc/lib/libnvrtc.so.12 ;; \
			*) name=nccl file=nvidia/nccl/lib/libnccl.so.2 ;; \
		esac; \
		folder=$(VENDOR)/$$name-$${wheel##*==}; \
		[ ! -f $$folder/$$file ] || continue; \
		rm -rf $(VENDOR)/wheels && mkdir -p $$folder; \
		$(PYTHON) -m pip download --quiet --no-deps --no-cache-dir --only-binary :all: --dest $(VENDOR)/wheels $$wheel && \
			$(PYTHON) -m zipfile -e $(VENDOR)/wheels/*.whl $$folder || \
			{ echo "no tests of $$wheel: the wheel could not be had"; rm -rf $$folder; }; \
		rm -rf $(VENDOR)/wheels; \
	done

test-vendor: vendor
	cargo test --locked --test uform vendor::

# torch and its real torchrun, in an environment of its own: 1.9 GB to load, 4.2 GB on disk. No GPU is used, but torch does not
# load without these libraries of NVIDIA.
PEERS_VENV := .venv-peers
PEERS_PYTHON = $(CURDIR)/$(PEERS_VENV)/bin/python
test-peers: wheel network
	[ -x $(PEERS_PYTHON) ] || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_PYTHON) -m pip install --quiet --no-deps --no-cache-dir --requirement tests/peers/requirements.txt
	$(PEERS_PYTHON) -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	PYTHONPATH=tests/python $(PEERS_PYTHON) -m pytest tests/peers

# Tests of the C interface use them. Without root, those tests say that they are skipped.
c-tools:
	@for tool in valgrind pkg-config; do \
		command -v $$tool >/dev/null && continue; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$tool >/dev/null; \
		else \
			echo "$$tool is not installed: its tests are skipped (Debian: apt-get install $$tool)"; \
		fi; \
	done

# --- The C library ------------------------------------------------------------------------------------------------

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR = $(firstword $(subst ., ,$(VERSION)))
BUILT = $(or $(CARGO_TARGET_DIR),target)/$(if $(filter dev,$(CARGO_PROFILE)),debug,$(CARGO_PROFILE))

install:
	cargo build --quiet --locked --profile $(CARGO_PROFILE) --package uform-c --package uform-launch
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(INCLUDEDIR) $(LIBDIR)/pkgconfig)
	install -m 644 include/uform.h $(DESTDIR)$(INCLUDEDIR)/uform.h
	install -m 755 $(BUILT)/libuform_c.so $(DESTDIR)$(LIBDIR)/libuform.so.$(VERSION)
	ln -sf libuform.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libuform.so.$(MAJOR)
	ln -sf libuform.so.$(MAJOR) $(DESTDIR)$(LIBDIR)/libuform.so
	install -m 644 $(BUILT)/libuform_c.a $(DESTDIR)$(LIBDIR)/libuform.a
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		crates/uform-c/uform.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/uform.pc
	install -m 755 $(BUILT)/uform $(DESTDIR)$(BINDIR)/uform

uninstall:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libuform.so.$(VERSION) libuform.so.$(MAJOR) libuform.so libuform.a \
		pkgconfig/uform.pc) $(DESTDIR)$(INCLUDEDIR)/uform.h $(DESTDIR)$(BINDIR)/uform

# --- Python -------------------------------------------------------------------------------------------------------

# A Debian without python3-venv has no ensurepip, and so makes no environment with pip in it.
$(BIN)/maturin: $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name another with 'make PYTHON=...'" >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null; \
		else \
			echo "Python has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; \
		fi; \
	fi
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --requirement $(REQUIREMENTS)
	touch $@

# One wheel file in dist, so that an older one is never the one installed.
wheel: $(BIN)/maturin
	rm -rf dist
	$(BIN)/maturin build --release --locked --manifest-path python/Cargo.toml --interpreter $(BIN)/python --out dist
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl

lint-python:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --config-file python/pyproject.toml --strict python/uform
	$(BIN)/mypy --config-file python/pyproject.toml --strict examples benches tests/python tests/peers
	$(BIN)/python -m mypy.stubtest --mypy-config-file python/pyproject.toml uform

test-python:
	$(BIN)/python -m pytest tests/python

# --- Licences and sources of dependencies -------------------------------------------------------------------------

# Building cargo-deny takes minutes: `make lint` does it once, `make test` uses it where it is.
lint-deny-installed:
	@if command -v cargo-deny >/dev/null; then \
		cargo deny --locked $(DENY_CHECK); \
	else \
		echo "cargo-deny is not installed: licences and sources not checked ('make lint' installs it)"; \
	fi

lint-deny:
	@command -v cargo-deny >/dev/null || \
		cargo install cargo-deny --version $(DENY_VERSION) --locked --root $(TOOLS)
	cargo deny --locked $(DENY_CHECK)

# The front door, for people and for CI. `make help` lists the doors.
SHELL := /bin/sh
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET_DIR)/release
SKIPS := $(abspath $(TARGET_DIR))/skips.log
FUZZ_SECONDS ?= 60
# Examples with tests of their own.
EXAMPLES ?= boutique retail certinfo resizer
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.PHONY: help build demo up test test-nat test-jobs test-python test-rendezvous test-go test-sdk test-shape sdk sdk-c sdk-python sdk-node loom asan lint fmt fuzz bench audit dist clean setup setup-cargo-tools

help: ## list what can be made
	@sed -n 's/^\([a-zA-Z%-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust 1.90 or newer (https://rustup.rs)" >&2; exit 1; }
	@tools/need cc=gcc clang=clang python3=python3 ip=iproute2 nft=nftables bwrap=bubblewrap mosquitto_pub=mosquitto-clients coap-client-notls=libcoap3-bin pg_createcluster=postgresql redis-server=redis-server mariadbd=mariadb-server mariadb=mariadb-client nginx=nginx curl=curl /usr/include/hiredis/hiredis.h=libhiredis-dev /usr/share/java/postgresql.jar=libpostgresql-jdbc-java || echo "going on with what is there"
	@! command -v python3 >/dev/null || python3 -c 'import ensurepip, pip' 2>/dev/null || tools/need pip-and-venv=python3-pip pip-and-venv=python3-venv || echo "going on without packages of Python's"

build: setup ## nearpath and its static watchdog, optimised
	$(CARGO) build --release --locked -p nearpath-cli -p nearpath-bench -p boutique-currency -p boutique-native -p sensing
	@tools/need musl-gcc=musl-tools || echo "going on without musl's compiler"
	target=$$(tools/static-target) && \
	CC_x86_64_unknown_linux_musl=musl-gcc CC_aarch64_unknown_linux_musl=musl-gcc RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --profile watchdog --locked --target $$target -p nearpath-watchdog && \
	cp $(TARGET_DIR)/$$target/watchdog/nearpath-watchdog $(RELEASE)/nearpath-watchdog
	@mkdir -p examples/boutique/services/bin && cp $(RELEASE)/boutique-currency examples/boutique/services/bin/currency
	@for example in motion parking; do mkdir -p examples/$$example/functions && cp $(RELEASE)/sensing examples/$$example/functions/sensing; done
	@mkdir -p examples/boutique/native/bin && cp $(RELEASE)/boutique-native examples/boutique/native/bin/

demo: build ## a ten-service shop on this machine, under load for some seconds
	@PATH="$(abspath $(RELEASE)):$$PATH" examples/demo.sh

up: build ## controller, node and gateway in one process, until Ctrl-C
	$(RELEASE)/nearpath up

test: setup ## every test that is fast; fails when more are skipped than tests/skips.allowed lists
	@rm -f $(SKIPS)
	$(CARGO) build --locked --workspace
	NEARPATH_SKIP_LOG=$(SKIPS) $(CARGO) test --locked --workspace
	NEARPATH_SKIP_LOG=$(SKIPS) $(MAKE) --no-print-directory test-python test-go test-sdk
	@tools/skips $(SKIPS)

test-jobs: setup ## whole jobs of Python's that take their time: whoever dies, here, elsewhere, on Lambda's stand-in, with an object store
	@rm -f $(SKIPS)-jobs
	$(CARGO) build --locked --workspace # as `make test` does: after it nothing is built
	NEARPATH_SKIP_LOG=$(SKIPS)-jobs tools/sdk-test jobs $(TARGET_DIR)/debug
	@tools/skips $(SKIPS)-jobs -jobs

test-nat: setup ## two workers behind NATs, every kind against every kind, and a hundred times where packets are lost; root
	$(CARGO) test --locked -p nearpath-meet --test nat_matrix -- --include-ignored
	$(CARGO) build --locked -p nearpath-job --examples # its workers
	$(CARGO) test --locked -p nearpath-job --test edges -- --include-ignored

test-python: ## the tests of the examples; those of one: EXAMPLES=retail
	@tools/need pip3=python3-pip || echo "going on without pip: examples that need a package will be skipped"
	@for example in $(EXAMPLES); do echo "examples/$$example" && python3 -m unittest discover -s examples/$$example/tests || exit 1; done

loom: setup ## every order of the steps on shared memory, by a model checker (crates/shm)
	CARGO_TARGET_DIR=$(TARGET_DIR)/loom RUSTFLAGS="--cfg loom" $(CARGO) test --locked -p nearpath-shm --release --test loom

asan: setup ## ten million forged descriptors and messages under the address sanitizer (crates/shm)
	# No search for leaks: where a test plays a party that dies, it forgets what that party held.
	CARGO_TARGET_DIR=$(TARGET_DIR)/asan RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 NEARPATH_SHM_RANDOM=10000000 \
	$(CARGO) test --locked --release --target "$$(rustc -vV | sed -n 's/^host: //p')" -p nearpath-shm --test random --test channel --test strict

test-rendezvous: setup ## ten thousand workers at one rendezvous: memory of a line, and that all meet
	$(CARGO) test --locked --release -p nearpath-meet --test rendezvous -- --ignored --exact scale::ten_thousand_workers_meet --nocapture

test-go: ## the Go SDK, and the examples of it where nothing else is
	tools/sdk-test go $(TARGET_DIR)/debug

test-sdk: ## the SDKs for Python and Node, against what `make test` has built; whole jobs that take long: test-jobs
	tools/sdk-test python $(TARGET_DIR)/debug
	tools/sdk-test node $(TARGET_DIR)/debug

test-shape: ## whether the wheel, the npm package and the Go module work where nothing else is; needs their registries
	@$(CARGO) build --locked -p nearpath-node-sdk
	@for language in python node go; do tools/sdk-shape $$language $(TARGET_DIR)/sdk/shape dev || exit 1; done

sdk: sdk-c sdk-python sdk-node ## what the SDKs are shipped as, in target/sdk; Rust and Go are used from source

sdk-c: setup ## header, libraries and pkg-config file
	$(CARGO) build --release --locked -p nearpath-c
	tools/sdk-c $(RELEASE) $(TARGET_DIR)/sdk/c

sdk-python: setup ## a wheel for every CPython from 3.11 on
	CARGO_TARGET_DIR=$(abspath $(TARGET_DIR)) python3 -m pip wheel --quiet --no-deps -w $(TARGET_DIR)/sdk/python sdk/python

sdk-node: setup ## a package that `npm install` takes
	$(CARGO) build --release --locked -p nearpath-node-sdk
	@mkdir -p $(TARGET_DIR)/sdk/node
	cp $(RELEASE)/libnearpath_node_sdk.so sdk/node/nearpath.node
	cd sdk/node && npm pack --silent --pack-destination $(abspath $(TARGET_DIR))/sdk/node

lint: setup setup-cargo-tools ## format, clippy, dependencies, layers, and one minute of every fuzz target
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) run -q --locked -p nearpath-xtask -- layers
	$(CARGO) deny --log-level error check bans licenses sources
	$(MAKE) --no-print-directory fuzz

setup-cargo-tools:
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked --quiet cargo-deny
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked --quiet cargo-fuzz

fuzz: setup-cargo-tools ## every fuzz target for FUZZ_SECONDS (60)
	@tools/need g++=g++ || true
	@for target in $(FUZZ_TARGETS); do tools/fuzz $$target $(FUZZ_SECONDS) || exit 1; done

fmt: ## format everything
	$(CARGO) fmt --all

bench: bench-edge bench-start bench-ring bench-shm bench-boutique ## every comparison

bench-%: build ## one comparison: bench-edge, bench-start, bench-ring; writes bench/results/NAME.json
	@tools/need nginx=nginx || echo "going on without nginx: the comparison will say what it lacks"
	PATH="$(abspath $(RELEASE)):$$PATH" $(RELEASE)/nearpath-bench $*

bench-quic: build ## calls to another machine, by the transports; root
	@tools/need python3=python3 pip3=python3-pip || echo "going on without pip: the comparison will say what it lacks"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	PATH="$(abspath $(RELEASE)):$$PATH" $(RELEASE)/nearpath-bench quic

bench-pool: build ## connections of functions to servers elsewhere, warm and new; root
	@tools/need python3=python3 pip3=python3-pip pgbouncer=pgbouncer || echo "going on without: the comparison will say what it lacks"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/need initdb=postgresql || echo "going on without PostgreSQL: the comparison will say so"
	PATH="$(abspath $(RELEASE)):/usr/sbin:$$PATH" $(RELEASE)/nearpath-bench pool

bench-punch: build ## workers behind NATs: how fast, how soon, which of them meet; root
	@tools/need nft=nftables tc=iproute2 nsenter=util-linux || echo "going on without: the comparison will say what it lacks"
	$(CARGO) build --release --locked -p nearpath-python
	@mkdir -p $(RELEASE)/sdk/bench && rm -rf $(RELEASE)/sdk/bench/nearpath && cp -r sdk/python/nearpath $(RELEASE)/sdk/bench/ && cp $(RELEASE)/lib_nearpath.so $(RELEASE)/sdk/bench/nearpath/_nearpath.abi3.so
	PATH="$(abspath $(RELEASE)):/usr/sbin:$$PATH" PYTHONPATH="$(abspath $(RELEASE))/sdk/bench" $(RELEASE)/nearpath-bench punch

REDUCE := $(TARGET_DIR)/bench
bench-reduce: build ## reduce-by-key with 104 workers behind NATs: nearpath.dataflow, an object store, Redis; root
	@tools/need python3=python3 pip3=python3-pip redis-server=redis-server nft=nftables || echo "going on with what is there"
	$(CARGO) build --release --locked -p nearpath-python
	@mkdir -p $(REDUCE)/sdk && rm -rf $(REDUCE)/sdk/nearpath && cp -r sdk/python/nearpath $(REDUCE)/sdk/ && cp $(RELEASE)/lib_nearpath.so $(REDUCE)/sdk/nearpath/_nearpath.abi3.so
	@test -x $(REDUCE)/venv/bin/python || python3 -m venv $(REDUCE)/venv
	@$(REDUCE)/venv/bin/pip install -q --disable-pip-version-check -r bench/reduce/requirements.txt
	PYTHONPATH="$(abspath $(REDUCE)/sdk)" $(REDUCE)/venv/bin/python -m unittest discover -s bench/reduce/tests
	PATH="$(abspath $(RELEASE)):$$PATH" PYTHONPATH="$(abspath $(REDUCE)/sdk)" $(RELEASE)/nearpath-bench reduce --python $(abspath $(REDUCE))/venv/bin/python

audit: build ## count by tracing what a request makes the kernel do; writes docs/reference/audit.md; root
	@tools/need bpftrace=bpftrace nginx=nginx perf=linux-perf strace=strace || echo "going on with what is there"
	PATH="$(abspath $(RELEASE)):$$PATH" $(RELEASE)/nearpath-bench audit

dist: build ## a tarball for this architecture and C library
	@tools/dist $(RELEASE)

clean: ## remove what was built
	$(CARGO) clean

# The tasks of this project. The scripts install missing programs into a cache (~/.cache/muxtunnel), or by apt as root; see
# e2e/cluster/cluster.

.PHONY: help demo test bench against faults fuzz mutants man interop cluster images install second down

# The progress lines ([3/9] ...) count the steps of all scripts that a target runs: a script gets the number of the steps
# before its own, and their total. The scripts have 4 (cluster), 2 (build), 1 (load), 1 (install) and 1 (demo).
STEPS_cluster := 4
STEPS_images := 7
STEPS_install := 8
STEPS_second := 8
STEPS_faults := 8
STEPS_demo := 9
STEPS := $(STEPS_$(lastword $(MAKECMDGOALS)))

MAN_DIR := target/man/man1

help: ## list the tasks
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 20

demo: install ## run the benchmark matrix in a kind cluster and print its table (about 14 minutes; the first time about 32)
	@MUXTUNNEL_STEPS=8/$(STEPS) e2e/demo

test: ## run every test: lint, unit, chart, kind cluster; the last line is "N passed, N failed"
	e2e/test-all

bench: ## compare the data plane with other tools, on loopback and in network namespaces (up to 130 minutes)
	cargo build --release --package muxtunnel-gateway --package muxtunnel-netem
	cargo run --release --package muxtunnel-bench-lab

against: ## compare the throughput of this muxgate with another build: make against OTHER=PATH (about 17 minutes)
	cargo build --release --package muxtunnel-gateway --package muxtunnel-netem
	cargo run --release --package muxtunnel-bench-lab -- --against $(OTHER)

faults: install ## measure each fault in the kind cluster: killed pods, roll-outs, no API server (about an hour)
	e2e/faults

fuzz: ## fuzz the code that reads input of peers and clients, 10 minutes for each of 23 targets (MUX_FUZZ_SECONDS=N: N seconds)
	gateway/proto/fuzz/run

mutants: ## apply the faults of mutants/ one by one and check that their tests fail (NAME="a b": only these)
	mutants/run $(NAME)

man: ## write the manual pages of all programs into target/man/man1 (MAN_DIR=FOLDER: into FOLDER)
	cargo run --package muxtunnel-man -- $(MAN_DIR)

interop: ## test muxgate against the jetsocat on the PATH
	cargo test --package muxtunnel-gateway --test gateway interop:: -- --ignored

cluster: ## create the kind cluster, or reuse it
	@MUXTUNNEL_STEPS=0/$(STEPS) e2e/cluster/cluster up

images: cluster ## build the images and load them into the cluster
	@MUXTUNNEL_STEPS=4/$(STEPS) images/build
	@MUXTUNNEL_STEPS=6/$(STEPS) images/load

install: images ## install the chart with the built images into the cluster
	@MUXTUNNEL_STEPS=7/$(STEPS) e2e/install

second: ## create a second cluster with the same chart, for traffic between clusters
	@MUXTUNNEL_STEPS=0/$(STEPS) e2e/cluster/cluster up second
	@MUXTUNNEL_STEPS=4/$(STEPS) images/build
	@MUXTUNNEL_STEPS=6/$(STEPS) images/load second
	@MUXTUNNEL_STEPS=7/$(STEPS) e2e/install second

down: ## delete the kind clusters, and keep the cache
	e2e/cluster/cluster down

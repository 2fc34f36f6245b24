# What there is to do with this project. Everything that is missing on the machine is installed into a cache
# (~/.cache/muxtunnel), or by apt where we are root; e2e/cluster/cluster says how.

.PHONY: help demo test bench against faults fuzz mutants interop cluster images install second down

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST) | expand -t 20

demo: install ## the main job: the benchmark matrix in a kind cluster, ends with its table (about 12 minutes, cold 30)
	e2e/demo

test: ## every test: lint, unit, chart, and in a kind cluster; ends with "N passed, N failed"
	e2e/test-all

bench: ## the data plane alone against its peers, on loopback and in network namespaces (up to 110 minutes)
	cargo build --release --package muxtunnel-gateway --package muxtunnel-netem
	cargo run --release --package muxtunnel-bench-lab

against: ## is this muxgate slower than another build? make against OTHER=PATH-OF-MUXGATE (about 8 minutes)
	cargo build --release --package muxtunnel-gateway --package muxtunnel-netem
	cargo run --release --package muxtunnel-bench-lab -- --against $(OTHER)

faults: install ## what each fault costs in the kind cluster: pods killed, roll-outs, no API server (about an hour)
	e2e/faults

fuzz: ## look for inputs that break what hears peers and strangers, 10 minutes for each of 18 targets (MUX_FUZZ_SECONDS=N)
	gateway/proto/fuzz/run

mutants: ## plant the faults of mutants/ one by one and see their tests fail (NAME="a b" for some of them)
	mutants/run $(NAME)

interop: ## muxgate against the jetsocat that is on the PATH
	cargo test --package muxtunnel-gateway --test interop -- --ignored

cluster: ## bring the kind cluster up, or reuse it
	e2e/cluster/cluster up

images: cluster ## build the images and load them into the cluster
	images/build
	images/load

install: images ## install the chart with these images into the cluster
	e2e/install

second: ## bring a second cluster up beside it, with the same chart, for what crosses clusters
	e2e/cluster/cluster up second
	images/build
	images/load second
	e2e/install second

down: ## delete the kind clusters; the cache stays
	e2e/cluster/cluster down

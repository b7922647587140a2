# `make` alone lists the targets. Everything is installed into .venv and .tools; nothing outside this folder
# but Kafka's and Spark's jars, which are fetched once into ~/.cache/statehouse, and ours, which is compiled there.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .tools/bin
GRPCURL := $(TOOLS)/grpcurl
BUF := $(TOOLS)/buf
# Checks the prose of docs, docstrings and comments.
VALE := $(TOOLS)/vale
# Renders and checks the chart in deploy/helm, for tests.
HELM := $(TOOLS)/helm
LOAD_SOURCE := tests/robustness/load
LOAD := $(TOOLS)/lookup-load
LOADGEN_SOURCE := bench/loadgen
LOADGEN := $(TOOLS)/loadgen
METRONOME_SOURCE := tools/metronome
# A disk that tests can make stall.
STALLING_DISK_SOURCE := tools/stalling_disk
STALLING_DISK := $(TOOLS)/stalling_disk
# In Go: what serves gRPC in front of nodes and routers, and their stores.
DATAPLANE := dataplane
PROXY := $(TOOLS)/statehouse-proxy
PROXY_PROTO := $(CURDIR)/protos $(addprefix --path $(CURDIR)/protos/statehouse/,$(addprefix control/v1/,engine.proto express.proto files.proto \
  proxy_sums.proto serving.proto) v1/peer_service.proto)
# The programs of docs/other-languages.md.
GO_CLIENT_SOURCE := tests/interop/clients/go
GO_CLIENT_STUBS := $(GO_CLIENT_SOURCE)/gen/statehouse/v1/query_service_grpc.pb.go
GO_CLIENT := $(TOOLS)/readkey
JAVA_CLIENT_SOURCE := tests/interop/clients/java
JAVA_CLIENT_BUILD := .tools/readkey
JAVA_CLIENT := $(JAVA_CLIENT_BUILD)/readkey.jar
# Kafka's own command-line tools, which examples/README.md uses.
CONSOLE_SOURCE := tests/interop/console/pom.xml
CONSOLE := .tools/kafka-console/.ready
# What benchmarks compare with.
PEER_SOURCE := bench/peers/kafka-streams
PEER_BUILD := .tools/kafka-streams-peer
PEER := $(PEER_BUILD)/kafka-streams-peer.jar
PUBLIC_PROTOS := $(wildcard protos/statehouse/v1/*.proto)
# A schema registry, for tests.
REGISTRY_VERSION := 3.0.9
REGISTRY := .tools/schema-registry/apicurio-registry-app-$(REGISTRY_VERSION)-runner.jar
# What lists the parts of a distribution, and their licences.
BILL_TOOLS := .tools/dist/.ready
GOMOD_BILL := $(TOOLS)/cyclonedx-gomod
AUDIT_TOOLS := .tools/audit/.ready
GOVULNCHECK := $(TOOLS)/govulncheck
GOMOD_BILL_VERSION := v1.10.0
GOVULNCHECK_VERSION := v1.9.0
GRPCURL_VERSION := v1.9.3
BUF_VERSION := v1.59.0
VALE_VERSION := v3.21.0
HELM_VERSION := v3.22.0
# program:package. ip and nft make the network namespaces that tests cut; chromium is the browser that looks at pages;
# promtool checks the alerts, and a Prometheus of the same package has them fire; buildah and mmdebstrap build the images
# of deploy/ in `make test-long`; systemd-analyze checks its units. redis-server and PostgreSQL, which pg_ctlcluster comes
# with, are what benchmarks compare with.
DEBIAN_TOOLS := mvn:maven ip:iproute2 nft:nftables chromium:chromium promtool:prometheus
DEBIAN_TOOLS += redis-server:redis-server pg_ctlcluster:postgresql cc:gcc buildah:buildah mmdebstrap:mmdebstrap systemd-analyze:systemd
# Recommended by these, and not needed: it would bring what watches the machine.
DEBIAN_UNWANTED := prometheus-node-exporter-
# The public package must stay compatible in source (buf.yaml); the control topics on the wire.
CONTROL_RULES := {"version":"v2","modules":[{"path":"protos"}],"breaking":{"use":["WIRE_JSON"],"ignore":["protos/statehouse/v1"]}}
PYTEST := $(BIN)/pytest
# What must hold with the express way, as `make test` has it, without it, and without the proxy.
ROUTED := $(addprefix tests/integration/,routing failover faults fuzz)
export PATH := $(CURDIR)/$(TOOLS):$(PATH)
# With compiled modules processes start a sixth sooner, and tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# The program is built without C; with it, tests and checks would compile all that it depends on a second time.
# Only vale needs C (its parsers), and the detector of races.
export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help prose setup class-archive tools debian-tools demo up down test race test-unit mutate test-long robustness check fmt
.PHONY: proto docs lock hooks audit dist dist-tools release release-commit clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: setup ## Run the leaderboard once on a real broker, kill a node, show who answers; leaves nothing behind
	$(BIN)/python -m examples.leaderboard.demo

test: setup tools class-archive ## Run all tests at small size, two at a time (what CI runs)
	go -C $(DATAPLANE) test ./...
	go -C $(LOADGEN_SOURCE) test ./...
	$(PYTEST) -m "not long" -n 2 --dist loadscope --no-loadscope-reorder

# Its own target: it compiles all of Go anew, which takes a fresh clone minutes.
race: ## Run the tests in Go, looking for data races (by hand, and in `make test-long`)
	CGO_ENABLED=1 go -C $(DATAPLANE) test -race ./...
	CGO_ENABLED=1 go -C $(LOADGEN_SOURCE) test -race ./...

up: setup ## Start the leaderboard cluster on this machine and keep it running; with Go, build grpcurl first
	@! command -v go >/dev/null || $(MAKE) --no-print-directory $(GRPCURL) || echo "grpcurl wasn't built; all else works" >&2
	$(BIN)/statehouse up

down: setup ## Stop the cluster that `make up` started
	$(BIN)/statehouse down

test-unit: setup $(VALE) ## Run the tests that need neither Kafka nor Spark, and show which lines none of them reaches
	$(BIN)/coverage run -m pytest tests/unit tests/property tests/simulation -m "not long"
	$(BIN)/coverage report

MODULE ?= statehouse/contract/consistency.py
TESTS ?= tests/unit/statehouse tests/property/statehouse
mutate: setup ## Change MODULE in each place, one at a time, and show what TESTS don't notice (docs/robustness.md)
	rm -rf .mutation && git worktree prune && git worktree add --detach .mutation HEAD
	sed -e 's|MODULE"|$(MODULE)"|' -e 's|TESTS"|$(TESTS)"|' cosmic-ray.toml > .mutation/session.toml
	cd .mutation && export PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH="$(CURDIR)/.mutation" && \
	  cosmic-ray init session.toml session.sqlite && cr-filter-operators session.sqlite session.toml && \
	  cosmic-ray exec session.toml session.sqlite && cr-report --show-diff --surviving-only session.sqlite
	git worktree remove --force .mutation

# Each fuzz test; `make test` tries what they begin with.
FUZZED_FOR := 30s
test-long: setup tools dist-tools class-archive race ## Run the full-size tests (by hand; up to two hours)
	$(PYTEST) -m long --timeout 3600
	cd $(DATAPLANE) && for at in $$(grep -rl '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for name in $$(go test -list '^Fuzz' $$at | grep '^Fuzz'); do \
	    go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZED_FOR) $$at || exit 1; \
	  done; \
	done
	for how in STATEHOUSE_EXPRESS=no STATEHOUSE_PROXY=none; do \
	  env $$how $(PYTEST) -m "not long" $(ROUTED) || exit 1; \
	done

# The second run is played also if a check of the first failed: the page has both.
robustness: setup tools class-archive ## Play the robustness scenarios at full size, plain and then with TLS and rules, and write docs/robustness.md (a quiet machine, 40 minutes)
	@failed=0; for how in "" --secured; do \
	  $(BIN)/python -m tests.robustness $$how --report docs/robustness.md || failed=1; \
	done; exit $$failed

bench: setup tools class-archive ## Measure beside Kafka Streams at full size, name the results in docs/performance.md (a quiet machine, about an hour)
	$(BIN)/python -m bench full --page docs/performance.md

bench-quick: setup tools class-archive ## The same in less than ten minutes
	$(BIN)/python -m bench quick

bench-smoke: setup tools ## Show in a minute that the benchmarks work; the figures mean nothing
	$(BIN)/python -m bench smoke

# These two need the virtual environment, buf, vale and Go, and nothing else: no Java, no Maven, no right to install.
check: setup prose $(BUF) $(GO_CLIENT_STUBS) ## Prose, format, lint, types, import rules, generated code, contract, releases
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generate_protos --check
	@fresh=$$(mktemp -d) && trap "rm -r $$fresh" EXIT && cd $(DATAPLANE) && buf generate $(PROXY_PROTO) --output $$fresh && \
	  diff -r gen $$fresh/gen || { echo "the proxy's generated code differs from protos/: run make proto" >&2; exit 1; }
	$(BIN)/python -m tools.generate_errors_doc --check
	$(BIN)/python -m tools.generate_settings_doc --check
	$(BIN)/python -m tools.generate_commands_doc --check
	$(BIN)/python -m tools.generate_protos_doc --check
	$(BIN)/python -m tools.generate_features_doc --check
	$(BIN)/python -m tools.generate_chart --check
	$(BIN)/python -m tools.generate_dashboards --check
	@fresh=$$(mktemp -d) && trap "rm -r $$fresh" EXIT && $(SITE) --quiet --site-dir $$fresh
	@gofmt -d $(DATAPLANE) $(LOAD_SOURCE) $(LOADGEN_SOURCE) $(METRONOME_SOURCE) $(STALLING_DISK_SOURCE) $(GO_CLIENT_SOURCE)/*.go | (! grep .)
	go -C $(DATAPLANE) vet ./...
	go -C $(LOAD_SOURCE) vet ./...
	go -C $(LOADGEN_SOURCE) vet ./...
	go -C $(STALLING_DISK_SOURCE) vet ./...
	go -C $(GO_CLIENT_SOURCE) vet .
	$(BUF) lint
	$(BUF) format --diff --exit-code
	$(BIN)/python tools/releases.py check
	$(BUF) breaking --against "$$($(BIN)/python tools/releases.py contract)"
	$(BUF) breaking --config '$(CONTROL_RULES)' --against "$$($(BIN)/python tools/releases.py contract)"

prose: $(VALE) ## Check docs, docstrings and comments by the rules in styles/
	@git ls-files "*.md" "*.py" "*.go" "*.java" | xargs $(VALE) --output=line

fmt: setup $(BUF) ## Format the code and the contract
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	gofmt -w $(DATAPLANE) $(LOAD_SOURCE) $(LOADGEN_SOURCE) $(METRONOME_SOURCE) $(STALLING_DISK_SOURCE) $(GO_CLIENT_SOURCE)/*.go
	$(BUF) format --write

proto: setup $(BUF) ## Generate the Python modules of the contract, and the proxy's part of it in Go
	$(BIN)/python -m tools.generate_protos
	cd $(DATAPLANE) && buf generate $(PROXY_PROTO)

docs: setup ## Write the pages and dashboards that are made from code, and build the documentation's site into site/
	$(BIN)/python -m tools.generate_errors_doc
	$(BIN)/python -m tools.generate_settings_doc
	$(BIN)/python -m tools.generate_commands_doc
	$(BIN)/python -m tools.generate_protos_doc
	$(BIN)/python -m tools.generate_features_doc
	$(BIN)/python -m tools.generate_chart
	$(BIN)/python -m tools.generate_dashboards
	$(SITE)
	@echo "open $(CURDIR)/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory site"

# A broken link or anchor, and a page that is in no menu, is an error. The variable silences an advertisement.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: setup ## Pin the requirements again
	$(BIN)/uv pip compile pyproject.toml --extra dev $(LOCK) -o requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml --extra service --extra http --extra tracing -c requirements/dev.txt $(LOCK) -o requirements/service.txt
	$(BIN)/uv pip compile pyproject.toml --extra processor --extra http --extra tracing -c requirements/dev.txt $(LOCK) -o requirements/processor.txt
	$(BIN)/uv pip compile --group dist -c requirements/dev.txt $(LOCK) -o requirements/dist.txt
	$(BIN)/uv pip compile --group audit -c requirements/dev.txt $(LOCK) -o requirements/audit.txt
	printf 'hatchling\nsetuptools\nwheel\n' | $(BIN)/uv pip compile - -c requirements/dev.txt $(LOCK) -o deploy/build-requirements.txt
LOCK := --quiet --generate-hashes --no-emit-package statehouse-client --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11

hooks: setup ## Have git run fmt and check before each commit
	$(BIN)/pre-commit install

dist: setup dist-tools ## Build the last commit's wheels into dist/, twice, and compare; with bills of materials and a licence report
	$(BIN)/python -m tools.dist

# By hand: it asks the package index's own API and Go's database of vulnerabilities, and what they say changes without a
# change here. Without --strict pip-audit would find nothing wrong with packages that it could not ask about.
audit: $(AUDIT_TOOLS) $(GOVULNCHECK) ## Look for known vulnerabilities in what is locked, of Python and of Go
	for each in service processor dev; do $(dir $(AUDIT_TOOLS))bin/pip-audit --strict --require-hashes --disable-pip -r requirements/$$each.txt || exit 1; done
	for each in $(DATAPLANE) $(LOAD_SOURCE) $(LOADGEN_SOURCE); do $(GOVULNCHECK) -C $$each ./... || exit 1; done

$(AUDIT_TOOLS): requirements/audit.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	touch $@

$(GOVULNCHECK):
	GOBIN=$(CURDIR)/$(TOOLS) go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

dist-tools: $(BILL_TOOLS) $(GOMOD_BILL)

$(BILL_TOOLS): requirements/dist.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dist.txt
	touch $@

$(GOMOD_BILL):
	GOBIN=$(CURDIR)/$(TOOLS) go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(GOMOD_BILL_VERSION)

release: setup $(BUF) ## Write what the commit of a release contains: make release VERSION=1.2.3 URL=https://... (docs/releasing.md)
	@test -n "$(VERSION)" || { echo "say which: make release VERSION=1.2.3" >&2; exit 2; }
	$(BIN)/python tools/releases.py prepare $(VERSION) --url "$(URL)"
	$(BIN)/python -m tools.generate_chart

release-commit: setup $(BUF) ## Name the last release's commit in RELEASES.toml, once it is made
	$(BIN)/python tools/releases.py name-commit

setup: $(VENV)/.ready ## Create the virtual environment from the lock file

$(VENV)/.ready: requirements/dev.txt pyproject.toml client/pyproject.toml examples/word_sketch/pyproject.toml examples/response_times/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11, or run make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  -e client -e . -e examples/word_sketch -e examples/response_times
	touch $@

# All works without it, and takes longer.
class-archive: setup ## Make the archive of Spark's classes, if there is none, so that Spark starts sooner (a minute, once)
	-$(BIN)/python -m processor.spark.class_archive

tools: debian-tools $(PROXY) $(GRPCURL) $(BUF) $(VALE) $(HELM) $(LOAD) $(LOADGEN) $(STALLING_DISK) $(GO_CLIENT) $(JAVA_CLIENT) $(CONSOLE) $(PEER) $(REGISTRY) ## Build the proxy, grpcurl, buf, helm, the load generators, a disk that stalls, their peer and the clients of the docs; fetch Kafka's tools and a schema registry; install what is missing of DEBIAN_TOOLS

debian-tools:
	@missing=$$(for tool in $(DEBIAN_TOOLS); do command -v $${tool%:*} >/dev/null || echo $${tool#*:}; done); \
	  test -z "$$missing" || { apt-get update -qq && apt-get install -y -qq $$missing $(DEBIAN_UNWANTED) >/dev/null; } || \
	  { echo "these are missing and can't be installed; as root: apt-get install" $$missing >&2; exit 1; }

$(PROXY): $(shell find $(DATAPLANE) -name '*.go') $(wildcard $(DATAPLANE)/go.*)
	go -C $(DATAPLANE) build -buildvcs=false -o $(CURDIR)/$(PROXY) .

$(GRPCURL):
	GOBIN=$(CURDIR)/$(TOOLS) go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION)

$(BUF):
	GOBIN=$(CURDIR)/$(TOOLS) go install github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION)

$(VALE):
	CGO_ENABLED=1 GOBIN=$(CURDIR)/$(TOOLS) go install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)

$(HELM):
	GOBIN=$(CURDIR)/$(TOOLS) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

$(LOAD): $(wildcard $(LOAD_SOURCE)/*.go $(LOAD_SOURCE)/go.* $(METRONOME_SOURCE)/*)
	GOBIN=$(CURDIR)/$(TOOLS) go -C $(LOAD_SOURCE) install -buildvcs=false .

$(LOADGEN): $(wildcard $(LOADGEN_SOURCE)/*.go $(LOADGEN_SOURCE)/go.* $(METRONOME_SOURCE)/*)
	GOBIN=$(CURDIR)/$(TOOLS) go -C $(LOADGEN_SOURCE) install -buildvcs=false .

$(STALLING_DISK): $(wildcard $(STALLING_DISK_SOURCE)/*.go $(STALLING_DISK_SOURCE)/go.*)
	GOBIN=$(CURDIR)/$(TOOLS) go -C $(STALLING_DISK_SOURCE) install -buildvcs=false .

$(GO_CLIENT_STUBS): $(PUBLIC_PROTOS) $(wildcard $(GO_CLIENT_SOURCE)/buf.gen.yaml $(GO_CLIENT_SOURCE)/go.*) | $(BUF)
	cd $(GO_CLIENT_SOURCE) && buf generate $(CURDIR)/protos --path $(CURDIR)/protos/statehouse/v1

$(GO_CLIENT): $(wildcard $(GO_CLIENT_SOURCE)/*.go $(GO_CLIENT_SOURCE)/go.*) $(GO_CLIENT_STUBS)
	GOBIN=$(CURDIR)/$(TOOLS) go -C $(GO_CLIENT_SOURCE) install -buildvcs=false .

$(JAVA_CLIENT): $(shell find $(JAVA_CLIENT_SOURCE) -type f) $(PUBLIC_PROTOS) | debian-tools
	mvn -q -B package --file $(JAVA_CLIENT_SOURCE)/pom.xml -Dprotos=$(CURDIR)/protos -Dbuild.dir=$(CURDIR)/$(JAVA_CLIENT_BUILD)
	touch $@

$(CONSOLE): $(CONSOLE_SOURCE) | debian-tools
	mvn -q -B dependency:copy-dependencies --file $(CONSOLE_SOURCE) -DoutputDirectory=$(CURDIR)/$(dir $(CONSOLE))
	touch $@

$(PEER): $(shell find $(PEER_SOURCE)/pom.xml $(PEER_SOURCE)/src -type f) | debian-tools
	mvn -q -B package --file $(PEER_SOURCE)/pom.xml -Dbuild.dir=$(CURDIR)/$(PEER_BUILD)
	touch $@

$(REGISTRY): | debian-tools
	mvn -q -B dependency:get -Dtransitive=false -Dartifact=io.apicurio:apicurio-registry-app:$(REGISTRY_VERSION):tar.gz:all
	mkdir -p $(@D)
	mvn -q -B dependency:copy -Dartifact=io.apicurio:apicurio-registry-app:$(REGISTRY_VERSION):tar.gz:all -DoutputDirectory=$(CURDIR)/$(@D)
	tar -xzf $(@D)/apicurio-registry-app-$(REGISTRY_VERSION)-all.tar.gz -C $(@D) --touch
	rm $(@D)/apicurio-registry-app-$(REGISTRY_VERSION)-all.tar.gz

clean: ## Remove what set-up, tests and runs left in this folder
	rm -rf $(VENV) .tools $(GO_CLIENT_SOURCE)/gen .statehouse site
	rm -rf .mutation .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

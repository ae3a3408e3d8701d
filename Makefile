# What can be done here; `make help` lists it.
GO       ?= go
TOOLS    := $(CURDIR)/bin
LINT     := $(TOOLS)/golangci-lint-2.15.0
GOTESTSUM := $(TOOLS)/gotestsum-1.13.0
VULN     := $(TOOLS)/govulncheck-1.9.0
GORELEASER := $(GO) run github.com/goreleaser/goreleaser/v2@v2.17.0
K6       := $(TOOLS)/k6-1.8.1
# The real services' addresses, if they are up.
SERVICES := eval "$$(scripts/services env 2>/dev/null)"

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

dev: ## run everything in one process, and a demo
	$(GO) run ./cmd/freshet dev

build: ## build bin/freshet
	$(GO) build -o bin/freshet ./cmd/freshet

# Continuous integration runs these four in this order; each writes the events of its tests
# to a folder of its own below RESULTS.
RESULTS ?= $(TOOLS)/results
# Each run of tests: $(call tests,STAGE/RUN) ARGUMENTS. Prints a line a package, and what failed.
tests = mkdir -p $(RESULTS)/$(dir $(1)) && $(GOTESTSUM) --format pkgname --format-hide-empty-pkg --hide-summary skipped --jsonfile $(RESULTS)/$(1).json --
# Code without goroutines of its own: a search of all states of a model, and a simulated day.
# The race detector would find nothing there and take ten times as long.
SEQUENTIAL := ./lua ./scheduler/simday
# The race detector watches freshet and the libraries it shares memory with. It does not look
# into the embedded database and the Lua interpreter, which would run ten times as long. Packages
# with sync.Map or other generic code must not be added: the linker keeps one copy of each
# instantiation, and a copy without the detector makes it report races that are none.
RACE := -race $(foreach p,modernc.org/sqlite modernc.org/libc modernc.org/memory github.com/yuin/gopher-lua,-gcflags='$(p)/...=-race=false')
# The same without the addresses of services that may be set.
embedded = unset FRESHET_TEST_REQUIRE FRESHET_TEST_POSTGRES FRESHET_TEST_REDIS FRESHET_TEST_REDIS_CLUSTER FRESHET_TEST_KAFKA; $(call tests,$(1))

check: $(LINT) $(GOTESTSUM) ## first stage: build, linters, import rules, module files, scripts, documents, golden files
	$(GO) build ./...
	$(GO) vet ./...
	$(GO) mod tidy -diff
	cd e2e && $(GO) vet ./... && $(GO) mod tidy -diff
	shellcheck -x .ci/run scripts/services scripts/schemathesis scripts/commit-subjects scripts/services.d/*.sh
	$(call tests,check/documents) ./docs ./schemas ./deploy ./scripts/...
	$(call tests,check/commands) -run '^TestDocs_' ./cmd/freshet
	$(MAKE) lint kubernetes release-check

test: $(GOTESTSUM) ## second stage: all tests of the main module on embedded parts, with the race detector
	$(call embedded,test/race) $(RACE) -p 1 -parallel 4 -shuffle=on -timeout 25m $$($(GO) list ./... | grep -vxF "$$($(GO) list $(SEQUENTIAL))")
	$(call embedded,test/sequential) -shuffle=on $(SEQUENTIAL)
	$(call embedded,test/allocations) -run AllocatesAtMost ./query

test-services: $(GOTESTSUM) ## third stage: the tests that need a real service, with the race detector (see make services)
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; pattern=$$($(GO) run ./scripts/servicetests -run ./...) && \
	$(call tests,test-services/services) $(RACE) -p 1 -count=1 -timeout 25m -run "$$pattern" $$($(GO) run ./scripts/servicetests -packages ./...)

e2e: $(GOTESTSUM) ## fourth stage: processes, browser, Prometheus, scenarios and presets in short forms, on real services
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; (cd e2e && $(call tests,e2e/e2e) -count=1 -timeout 20m ./...) && \
	$(call tests,e2e/presets) -count=1 -timeout 10m -parallel 20 -run '$(PRESETS)' ./cmd/freshet -saturate=30s -used=0.9

e2e-long: ## the long forms of e2e on real services: hours; docs/testing.md lists them
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; (cd e2e && $(GO) test -count=1 -v -timeout 2h . -long) && \
	$(GO) test -count=1 -v -timeout 1h -run Million ./store/postgres -long
	$(GO) test -count=1 -timeout 2h ./limiter -seeds 300
	$(MAKE) presets scenarios torture FAULTS=$${FAULTS:-200}

e2e-quiet: ## end-to-end tests on real services that judge rates and times; needs a quiet machine
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -run 'Refresh|UpstreamFailure' . -quiet-machine

e2e-outage: ## a total outage at 350 calls/s on real services, and the recovery, judged (OUTAGE=10m)
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 120m -run TotalOutage . -outage=$${OUTAGE:-10m} -quiet-machine

scenarios: ## the scenarios and targets of adr-013 on real services, judged (ONLY=herd SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} --results scenarios/RESULTS.md $${ONLY:-all}

scenario-reads: $(K6) ## 3,000 users read during a flood, with a slow Kafka, and without Redis, judged (SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --k6 $(K6) --seconds $${SECONDS_EACH:-30} reads

observe: ## each panel, rule and alert on a real Prometheus, judged (SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} observe

torture: ## random faults under load, judged by Kafka, the database and the upstream's log (SEED= for a run again, FAULTS=12, RESULTS_FILE=path below e2e)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seed $${SEED:-0} --faults $${FAULTS:-12} $${RESULTS_FILE:+--results $$RESULTS_FILE} torture

PRESETS := PresetUsesIts|PresetsLearn|CrashedHolders|EachCallGoesWith
presets: ## each preset saturated for a minute against an upstream that enforces its contract, on a real Redis
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 20m -parallel 20 -run '$(PRESETS)' ./cmd/freshet -saturate=$${SATURATE:-60s} | grep -v '^=== '

screenshots: ## of the console's pages, wide and narrow, light and dark (DIR=screenshots; those in docs/console are some of them)
	@mkdir -p $${DIR:-screenshots} && dir=$$(cd $${DIR:-screenshots} && pwd) && cd e2e && \
	FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 ./browser -run TestPages_AreAccessible -screenshots $$dir && ls $$dir | wc -l

simulate-day: ## days of prefetch in accelerated time, by what is shipped (ENTITIES=18000000 DAYS=10 PLOT=schedule.svg)
	$(GO) run ./scheduler/simday -entities $${ENTITIES:-18000000} -days $${DAYS:-10} -plot "$${PLOT:-}"

fuzz: ## fuzz each fuzz test for a while (FUZZTIME=30s)
	@for target in $$(grep -rhoE 'func Fuzz[A-Za-z]+' --include=*_test.go . | awk '{print $$2}'); do \
		dir=$$(grep -rlE "func $$target\(" --include=*_test.go . | head -1 | xargs dirname); \
		$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $${FUZZTIME:-30s} -fuzzminimizetime 10x $$dir || exit 1; \
	done

schemathesis: ## try the HTTP API with what its document allows and forbids (EXAMPLES=50 SEED=1; needs Python)
	@scripts/schemathesis

bench: ## the figures of the README, as ratios within one run
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; $(GO) test -run '^$$' -bench . -benchtime $${BENCHTIME:-3x} ./consumer; \
	(cd e2e && $(GO) test -run '^$$' -bench Worker -benchtime $${BENCHTIME:-3x} .); \
	$(GO) test -run '^$$' -bench . ./source ./store/postgres ./simulator

bench-limiter: ## every line of the limiter's bar beside its peers, on a real Redis; fails if one is missed
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -run '^TestLimiter_BenchmarkTable$$' ./limiter -bar

bench-reads: ## fresh reads beside nginx' cache and a bare handler, in one run; fails below its limits (ROUND=5s)
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 60m -run Reads_ . -long -round=$${ROUND:-5s} -quiet-machine

bench-schedule: ## a tick of the schedule among few and many entities, and their import, on a real PostgreSQL (ENTITIES=18000000 ROUNDS=600)
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; \
	$(GO) test -run '^$$' -bench '^BenchmarkTick$$' -benchtime 400x -v -timeout 60m ./store/postgres -entities=$${ENTITIES:-1000000} && \
	$(GO) test -run '^$$' -bench '^BenchmarkImport$$/^unnest$$' -benchtime $${ROUNDS:-20}x -timeout 60m ./store/postgres

lint: $(LINT) ## linters and import fences
	$(LINT) run ./...
	cd deploy/kubernetes && $(LINT) run ./...
	cd deploy/release && $(LINT) run ./...
	cd e2e && $(LINT) run ./...

kubernetes: $(GOTESTSUM) ## the manifests fit the API types, each other and the freshet of this checkout
	cd deploy/kubernetes && $(GO) vet ./... && $(call tests,check/kubernetes) -count=1 ./... && $(GO) mod tidy -diff

sbom: build ## what is in bin/freshet, as CycloneDX: bin/freshet.cdx.json
	cd deploy/release && $(GO) run ./sbom -o $(TOOLS)/freshet.cdx.json $(TOOLS)/freshet

release-check: $(GOTESTSUM) ## .goreleaser.yaml fits goreleaser's types, and the SBOM what was linked
	cd deploy/release && $(GO) vet ./... && $(call tests,check/release) -count=1 ./...

release: release-check ## release the tag that is checked out, as a draft (IMAGE=registry.example/freshet; needs cosign and docker)
	@tag=$$(git describe --exact-match --tags) && notes=$$(mktemp) && trap "rm -f $$notes" EXIT && \
	awk -v tag="## $$tag" '/^## /{on = $$0 == tag; next} on' CHANGELOG.md > $$notes && \
	{ grep -q . $$notes || { echo "CHANGELOG.md has nothing under \"## $$tag\""; exit 1; }; } && \
	IMAGE=$${IMAGE:?say which image, as IMAGE=registry.example/freshet} $(GORELEASER) release --clean --release-notes $$notes

vuln: $(VULN) ## known vulnerabilities (asks vuln.go.dev)
	$(VULN) ./...

fmt: $(LINT) ## format
	$(LINT) fmt ./...

services: ## start the real services (scripts/services --help)
	@scripts/services up

services-down: ## stop the services that were started
	@scripts/services down

$(LINT):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(TOOLS)/golangci-lint $@

$(GOTESTSUM):
	GOBIN=$(TOOLS) $(GO) install gotest.tools/gotestsum@v1.13.0
	mv $(TOOLS)/gotestsum $@

$(VULN):
	GOBIN=$(TOOLS) $(GO) install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv $(TOOLS)/govulncheck $@

$(K6):
	GOBIN=$(TOOLS) $(GO) install go.k6.io/k6@v1.8.1
	mv $(TOOLS)/k6 $@

k6: $(K6) # tells where it is, to scenarios that were started without make
	@echo $(K6)

.PHONY: help dev build check test test-services e2e e2e-long presets e2e-quiet e2e-outage scenarios scenario-reads observe torture screenshots k6 simulate-day fuzz schemathesis bench bench-limiter bench-reads bench-schedule kubernetes sbom release-check release lint vuln fmt services services-down

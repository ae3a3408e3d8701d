# `make help` lists the targets.
GO       ?= go
TOOLS    := $(CURDIR)/bin
LINT     := $(TOOLS)/golangci-lint-2.15.0
GOTESTSUM := $(TOOLS)/gotestsum-1.13.0
VULN     := $(TOOLS)/govulncheck-1.9.0
GORELEASER := $(GO) run github.com/goreleaser/goreleaser/v2@v2.17.0
K6       := $(TOOLS)/k6-1.8.1
OAPI_CODEGEN := $(TOOLS)/oapi-codegen-2.8.2
AXE      := $(TOOLS)/axe-core-4.14.1.min.js
# The addresses of the real services, if they run.
SERVICES := eval "$$(scripts/services env 2>/dev/null)"

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

dev: ## run all roles in one process, with a demo
	$(GO) run ./cmd/freshet dev

build: ## build bin/freshet
	$(GO) build -o bin/freshet ./cmd/freshet

# Continuous integration runs the four stages check, test, test-services and e2e in this order.
# Each writes the events of its tests to its own folder below RESULTS.
RESULTS ?= $(TOOLS)/results
# A run of tests is $(call tests,STAGE/RUN) ARGUMENTS. It prints one line for each package, and the failures.
tests = mkdir -p $(RESULTS)/$(dir $(1)) && $(GOTESTSUM) --format pkgname --format-hide-empty-pkg --hide-summary skipped --jsonfile $(RESULTS)/$(1).json --
# Packages whose tests have no concurrency, such as a model checker and a simulated day. The race
# detector cannot find anything there and would take ten times as long. The stage check runs them.
SEQUENTIAL := ./lua ./scheduler/simday ./docs ./schemas ./deploy ./scripts/...
# Packages whose tests run whole installations. They run without others, and four tests of each at a
# time. With five, permits expire before the installations spend them, and tests take longer.
INSTALLATIONS := ./consumer ./cmd/freshet ./app
# The packages that take longest begin first, so that no processor is idle at the end.
LONGEST := ./limiter ./scheduler ./dlq ./query ./store/sqlite
# The race detector covers freshet and the libraries that it shares memory with. The embedded
# database and the Lua interpreter are excluded, because they would run ten times as long. Do not
# exclude packages with sync.Map or other generic code, such as miniredis: the linker keeps one copy of each
# instantiation, and a copy without the detector causes false reports.
RACE := -race -ldflags='-s -w' $(foreach p,modernc.org/sqlite modernc.org/libc modernc.org/memory github.com/yuin/gopher-lua,-gcflags='$(p)/...=-race=false')
# The same, with the addresses of services unset. GOGC=400 collects garbage less often, which saves a
# sixth of the processor time. A test binary with the race detector sleeps at its end for a second by
# default, to wait for races in goroutines that still run; 100 ms are enough, since tests stop theirs.
# The stage check runs vet.
embedded = export GOGC=400 GORACE=atexit_sleep_ms=100; unset FRESHET_TEST_REQUIRE FRESHET_TEST_POSTGRES FRESHET_TEST_REDIS FRESHET_TEST_REDIS_CLUSTER FRESHET_TEST_KAFKA; $(call tests,$(1)) -vet=off

check: $(LINT) $(GOTESTSUM) ## first stage: build, linters, import rules, module files, scripts, documents, golden files, tests without concurrency
	$(GO) build ./...
	$(GO) vet ./...
	GOOS=windows $(GO) vet ./cmd/... ./app/...
	$(GO) mod tidy -diff
	cd e2e && $(GO) vet ./... && $(GO) mod tidy -diff
	cd e2e/peers && $(GO) vet ./... && $(GO) mod tidy -diff
	shellcheck -x .ci/run scripts/services scripts/clients scripts/schemathesis scripts/commit-subjects scripts/planted-faults scripts/services.d/*.sh
	$(call tests,check/sequential) $(SEQUENTIAL)
	$(call tests,check/commands) -run '^TestDocs_' ./cmd/freshet
	$(MAKE) lint kubernetes release-check

test: $(GOTESTSUM) ## second stage: all other tests of the main module on embedded services, with the race detector
	$(call embedded,test/race) $(RACE) -p 3 -parallel 2 -shuffle=on -timeout 25m $(LONGEST) $$($(GO) list ./... | grep -vxF "$$($(GO) list $(LONGEST) $(SEQUENTIAL) $(INSTALLATIONS))")
	$(call embedded,test/race-installations) $(RACE) -p 3 -parallel 4 -shuffle=on -timeout 25m $(INSTALLATIONS)
	$(call embedded,test/allocations) -run AllocatesAtMost ./query

test-services: $(GOTESTSUM) ## third stage: the tests that need a real service, with the race detector (see make services)
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; pattern=$$($(GO) run ./scripts/servicetests -run ./...) && \
	$(call tests,test-services/services) $(RACE) -vet=off -p 2 -count=1 -timeout 25m -run "$$pattern" $$($(GO) run ./scripts/servicetests -packages ./...)

# The two packages that take longest begin first, side by side, and four tests of each run at a time.
# With five the processors are full, and tests wait longer. The presets need the processors for
# themselves; the stage test-services has run the tests of leases and credentials already.
# With the tag synctests, the locks of the Kafka client let the virtual time pass.
e2e: $(GOTESTSUM) ## fourth stage: short forms of the end-to-end tests (processes, browser, Prometheus, scenarios, presets) on real services
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; (cd e2e && \
	$(call tests,e2e/e2e) -tags synctests -count=1 -timeout 20m -parallel 4 ./scenarios . ./...) && \
	$(call tests,e2e/presets) -count=1 -timeout 10m -parallel 40 -run '$(SATURATED)' ./app -saturate=30s -used=0.9

e2e-long: ## long forms of the end-to-end tests on real services, hours; docs/testing.md lists them
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; (cd e2e && $(GO) test -count=1 -v -timeout 2h . -long) && \
	$(GO) test -count=1 -v -timeout 1h -run Million ./store/postgres ./consumer -long
	$(GO) test -count=1 -timeout 2h ./limiter -seeds 300
	$(GO) test -count=1 -timeout 1h ./scheduler ./dlq -seeds 20
	$(MAKE) axe presets scenarios torture FAULTS=$${FAULTS:-200}

e2e-quiet: ## end-to-end tests that judge rates and times, on real services; needs a machine without other load
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -run 'Refresh|UpstreamFailure' . -quiet-machine

e2e-outage: ## judge a total outage at 350 calls/s and the recovery, on real services (OUTAGE=10m)
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 120m -run TotalOutage . -outage=$${OUTAGE:-10m} -quiet-machine

scenarios: ## judge the scenarios and targets of adr-013 on real services (ONLY=herd SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} --results scenarios/RESULTS.md $${ONLY:-all}

scenario-reads: $(K6) ## judge 1,000 users who read during a flood, with a slow Kafka, and without Redis (SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --k6 $(K6) --seconds $${SECONDS_EACH:-30} reads

observe: ## judge each panel, rule and alert on a real Prometheus (SECONDS_EACH=30)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} observe

torture: ## judge random faults under load by Kafka, the database and the upstream's log (SEED= to repeat a run, FAULTS=12, RESULTS_FILE=path below e2e)
	@$(SERVICES); cd e2e && $(GO) run ./scenarios --seed $${SEED:-0} --faults $${FAULTS:-12} $${RESULTS_FILE:+--results $$RESULTS_FILE} torture

VIRTUAL := cd e2e && $(GO) test -tags synctests -count=1 -v -timeout
virtual-day: ## judge a day of two services of each role in virtual time, two to three minutes (SEED=7 LENGTH=24h ENTITIES=1000 SEEDS=1)
	@$(VIRTUAL) 12h -run '^TestDay_' ./virtual -shrink -seed=$${SEED:-0} -seeds=$${SEEDS:-1} -length=$${LENGTH:-24h} -entities=$${ENTITIES:-1000}

virtual-month: ## judge 30 days in virtual time, more than an hour (SEED=7)
	@$(MAKE) virtual-day LENGTH=720h

virtual-mutations: ## plant three faults in the code, and find each within ten seeds in virtual time, three minutes
	@$(VIRTUAL) 2h -run '^TestMutations_' ./virtual -mutations

lua-mutations: ## change single lines of the limiter's script, and check that a test fails for each, hours (MUTATIONS=162 SEED=1)
	@$(SERVICES); $(GO) test -count=1 -v -timeout 24h ./lua -run '^TestMutations_' -mutations=$${MUTATIONS:-162} -mutation-seed=$${SEED:-1}

SATURATED := BudgetWithoutRefusals|LearnDespite
PRESETS := $(SATURATED)|CrashedLeases|UseMostRemaining
presets: ## saturate each preset for a minute against an upstream that enforces its quota, on a real Redis
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 20m -parallel 20 -run '$(PRESETS)' ./app -saturate=$${SATURATE:-60s} | grep -v '^=== '

screenshots: ## write screenshots of the console's pages, wide and narrow, light and dark (DIR=screenshots; docs/console has a selection)
	@mkdir -p $${DIR:-screenshots} && dir=$$(cd $${DIR:-screenshots} && pwd) && cd e2e && \
	FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 ./browser -run TestPages_AreAccessible -screenshots $$dir && ls $$dir | wc -l

axe: $(AXE) ## check each page of the console with axe-core, in both themes and widths (needs npm to fetch axe-core)
	cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 ./browser -run TestPages_AreAccessible -axe $(AXE)

simulate-day: ## simulate days of prefetch in accelerated time with the shipped code (ENTITIES=18000000 DAYS=10 PLOT=schedule.svg)
	$(GO) run ./scheduler/simday -entities $${ENTITIES:-18000000} -days $${DAYS:-10} -plot "$${PLOT:-}"

planted-faults: ## plant an import, a race and a failing service test, and check which stage finds each (about 15 minutes)
	@$(SERVICES); scripts/planted-faults

fuzz: ## run each fuzz test (FUZZTIME=30s)
	@grep -rHoE 'func Fuzz\w+' --include=*_test.go . | sed 's/:func / /' | while read -r file target; do \
		$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $${FUZZTIME:-30s} -fuzzminimizetime 10x $$(dirname $$file) </dev/null || exit 1; \
	done

clients: $(OAPI_CODEGEN) ## generate clients from the contract, and read a snapshot with each (ONLY="go typescript python")
	@OAPI_CODEGEN=$(OAPI_CODEGEN) scripts/clients $(ONLY)

schemathesis: ## send generated valid and invalid requests to the HTTP API (EXAMPLES=50 SEED=1; needs Python)
	@scripts/schemathesis

bench: ## measure the figures of the README, as ratios within one run
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; $(GO) test -run '^$$' -bench . -benchtime $${BENCHTIME:-3x} ./consumer; \
	(cd e2e && $(GO) test -run '^$$' -bench Worker -benchtime $${BENCHTIME:-3x} .); \
	$(GO) test -run '^$$' -bench . ./source ./store/postgres ./simulator

bench-worker: ## compare the worker with bare upserts and with the same job on asynq and river, in turns (EVENTS=50000 BENCHTIME=3x)
	@$(SERVICES); cd e2e/peers && FRESHET_TEST_REQUIRE=1 $(GO) test -run '^$$' -bench Worker -benchtime $${BENCHTIME:-3x} -v -timeout 60m . -events=$${EVENTS:-50000}

bench-limiter: ## compare the limiter with other limiters on a real Redis; fails if a limit is missed
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -run '^TestLimiter_BenchmarkTable$$' ./limiter -bar

bench-reads: ## compare fresh reads with the cache of nginx and a bare handler; fails below its limits (ROUND=5s)
	@$(SERVICES); cd e2e && FRESHET_TEST_REQUIRE=1 $(GO) test -count=1 -v -timeout 60m -run Reads_ . -long -round=$${ROUND:-5s} -quiet-machine

bench-schedule: ## measure a tick of the scheduler with few and many entities, and their import, on a real PostgreSQL (ENTITIES=18000000 ROUNDS=600)
	@$(SERVICES); export FRESHET_TEST_REQUIRE=1; \
	$(GO) test -run '^$$' -bench '^BenchmarkTick$$' -benchtime 400x -v -timeout 60m ./store/postgres -entities=$${ENTITIES:-1000000} && \
	$(GO) test -run '^$$' -bench '^BenchmarkImport$$/^unnest$$' -benchtime $${ROUNDS:-20}x -timeout 60m ./store/postgres

bench-all: ## run all benchmarks, print every figure with commit, date, cores and load, and mark those 10 % worse than in the previous run on this machine (BASELINE=bin/bench.json); needs nginx and wrk, about an hour
	@mkdir -p $(TOOLS) && out=$$(mktemp) && trap "rm -f $$out" EXIT && \
	for target in bench bench-worker bench-limiter bench-reads bench-schedule; do $(MAKE) -s $$target || true; done 2>&1 | tee $$out; \
	$(GO) run ./scripts/benchall $${BASELINE:-$(TOOLS)/bench.json} < $$out

# The modules below deploy get only the linters that need no types. The others would analyse the API types of
# Kubernetes and goreleaser with all their dependencies, for three minutes of processor time.
lint: $(LINT) ## run the linters, with the import rules
	$(LINT) run ./...
	cd deploy/kubernetes && $(LINT) run --fast-only ./...
	cd deploy/release && $(LINT) run --fast-only ./...
	cd e2e && $(LINT) run ./...
	cd e2e/peers && $(LINT) run ./...

kubernetes: $(GOTESTSUM) ## check the manifests and the Helm chart against the API types, each other and this checkout's freshet
	cd deploy/kubernetes && $(GO) vet ./... && $(call tests,check/kubernetes) -count=1 ./... && $(GO) mod tidy -diff

sbom: build ## write the modules in bin/freshet as CycloneDX: bin/freshet.cdx.json
	cd deploy/release && $(GO) run ./sbom -o $(TOOLS)/freshet.cdx.json $(TOOLS)/freshet

release-check: $(GOTESTSUM) ## check .goreleaser.yaml against the types of goreleaser, and the SBOM
	cd deploy/release && $(GO) vet ./... && $(call tests,check/release) -count=1 ./...

release: release-check ## release the current tag as a draft (IMAGE=registry.example/freshet, TAP_TOKEN of the Homebrew tap; needs cosign and docker)
	@tag=$$(git describe --exact-match --tags) && notes=$$(mktemp) && trap "rm -f $$notes" EXIT && \
	awk -v tag="## $$tag" '/^## /{on = $$0 == tag; next} on' CHANGELOG.md > $$notes && \
	{ grep -q . $$notes || { echo "CHANGELOG.md has no text below \"## $$tag\""; exit 1; }; } && \
	IMAGE=$${IMAGE:?set the image, as in IMAGE=registry.example/freshet} $(GORELEASER) release --clean --release-notes $$notes

vuln: $(VULN) ## check for known vulnerabilities (from vuln.go.dev)
	$(VULN) ./...

fmt: $(LINT) ## format the code
	$(LINT) fmt ./...

services: ## start the real services (scripts/services --help)
	@scripts/services up

services-down: ## stop the started services and delete their data
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

$(OAPI_CODEGEN):
	GOBIN=$(TOOLS) $(GO) install github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2
	mv $(TOOLS)/oapi-codegen $@

$(AXE):
	@mkdir -p $(TOOLS) && dir=$$(mktemp -d) && trap "rm -rf $$dir" EXIT && cd $$dir && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-4.14.1.tgz && \
	echo "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c  package/axe.min.js" | sha256sum --check --quiet && mv package/axe.min.js $@

k6: $(K6) # prints the path, for scenarios that are started without make
	@echo $(K6)

.PHONY: help dev build check test test-services e2e e2e-long presets e2e-quiet e2e-outage scenarios scenario-reads observe torture screenshots axe k6 simulate-day virtual-day virtual-month virtual-mutations lua-mutations planted-faults fuzz clients schemathesis bench bench-worker bench-limiter bench-reads bench-schedule bench-all kubernetes sbom release-check release lint vuln fmt services services-down

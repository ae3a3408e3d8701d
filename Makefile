# What can be done here; `make help` lists it.
GO       ?= go
TOOLS    := $(CURDIR)/bin
LINT     := $(TOOLS)/golangci-lint-2.15.0
VULN     := $(TOOLS)/govulncheck-1.9.0
GORELEASER := $(GO) run github.com/goreleaser/goreleaser/v2@v2.17.0
K6       := $(TOOLS)/k6-1.8.1
# The real services' addresses, if they are up.
SERVICES := eval "$$(scripts/services env 2>/dev/null)"

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

dev: ## run everything in one process, and a demo
	$(GO) run ./cmd/freshet dev

build: ## build bin/freshet
	$(GO) build -o bin/freshet ./cmd/freshet

test: ## test, on the real services that are up (see make services)
	@$(SERVICES); $(GO) test -shuffle=on ./...

race: ## test with the race detector
	@$(SERVICES); $(GO) test -race -shuffle=on ./...

seen: ## the end-to-end tests on real services, judging the figures too
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_TIMED=1 $(GO) test -count=1 -v -run 'Thousand|Killed|EveryFailure' ./cmd/freshet

seen-outage: ## a total outage at 350/s on real services, and its end, judged (OUTAGE=10m)
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_TIMED=1 FRESHET_TEST_OUTAGE=$${OUTAGE:-10m} \
		$(GO) test -count=1 -v -timeout 120m -run 'TotalOutage' ./cmd/freshet

scenarios: ## the scenarios and targets of adr-013 on real services, judged (ONLY=herd SECONDS_EACH=30)
	@$(SERVICES); $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} --results scenarios/RESULTS.md $${ONLY:-all}

scenario-reads: $(K6) ## 3,000 users read during a flood, with a slow Kafka, and without Redis, judged (SECONDS_EACH=30)
	@$(SERVICES); $(GO) run ./scenarios --k6 $(K6) --seconds $${SECONDS_EACH:-30} reads

observe: ## what operators see: panels, rules and alerts on a real Prometheus, judged (SECONDS_EACH=30)
	@$(SERVICES); $(GO) run ./scenarios --seconds $${SECONDS_EACH:-30} observe

torture: ## faults at random under load, judged by Kafka, the database and the upstream's log (SEED= for a run again, FAULTS=12, RESULTS=a file to keep it in)
	@$(SERVICES); $(GO) run ./scenarios --seed $${SEED:-0} --faults $${FAULTS:-12} $${RESULTS:+--results $$RESULTS} torture

presets: ## each preset saturated for a minute against an upstream that enforces its contract, on a real Redis
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_SATURATE=$${SATURATE:-60s} \
		$(GO) test -count=1 -v -timeout 20m -parallel 20 -run 'PresetUsesIts|PresetsLearn|CrashedHolders|EachCallGoesWith' ./cmd/freshet | grep -v '^=== '

pictures: ## of the console's pages, wide and narrow, light and dark (DIR=pictures; those in docs/console are some of them)
	@mkdir -p $${DIR:-pictures} && FRESHET_TEST_REQUIRE=1 FRESHET_TEST_SCREENSHOTS=$$(cd $${DIR:-pictures} && pwd) \
		$(GO) test -count=1 -run EveryPageIsWellSeen ./console && ls $${DIR:-pictures} | wc -l

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
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 $(GO) test -run '^$$' -bench . -benchtime $${BENCHTIME:-3x} ./consumer ./cmd/freshet; \
	$(GO) test -run '^$$' -bench . ./source ./store/postgres ./simulator

bench-limiter: ## every line of the limiter's bar beside its peers, on a real Redis; fails if one is missed
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_BAR=1 $(GO) test -count=1 -v -run '^TestTheBar$$' ./limiter

bench-reads: ## fresh hits beside nginx' cache and a bare handler, in one run; fails if the bar is missed (ROUND=5s)
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_BAR=1 FRESHET_TEST_ROUND=$${ROUND:-5s} \
		$(GO) test -count=1 -v -timeout 60m -run '^TestTheBarOfReads$$' ./cmd/freshet

bench-schedule: ## a tick of the schedule among few and many entities, and their import, on a real PostgreSQL (ENTITIES=18000000 ROUNDS=600)
	@$(SERVICES); FRESHET_TEST_REQUIRE=1 FRESHET_TEST_ENTITIES=$${ENTITIES:-1000000} \
		$(GO) test -run '^$$' -bench '^BenchmarkTick$$' -benchtime 400x -v -timeout 60m ./store/postgres && \
	FRESHET_TEST_REQUIRE=1 $(GO) test -run '^$$' -bench '^BenchmarkImport$$/^unnest$$' -benchtime $${ROUNDS:-20}x -timeout 60m ./store/postgres

lint: $(LINT) ## linters and import fences
	$(LINT) run ./...
	cd deploy/kubernetes && $(LINT) run ./...
	cd deploy/release && $(LINT) run ./...

kubernetes: ## the manifests fit the API types, each other and the freshet of this checkout
	cd deploy/kubernetes && $(GO) vet ./... && $(GO) test -count=1 ./... && $(GO) mod tidy -diff

sbom: build ## what is in bin/freshet, as CycloneDX: bin/freshet.cdx.json
	cd deploy/release && $(GO) run ./sbom -o $(TOOLS)/freshet.cdx.json $(TOOLS)/freshet

release-check: ## .goreleaser.yaml fits goreleaser's types, and the SBOM what was linked
	cd deploy/release && $(GO) vet ./... && $(GO) test -count=1 ./...

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

$(VULN):
	GOBIN=$(TOOLS) $(GO) install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv $(TOOLS)/govulncheck $@

$(K6):
	GOBIN=$(TOOLS) $(GO) install go.k6.io/k6@v1.8.1
	mv $(TOOLS)/k6 $@

k6: $(K6) # tells where it is, to scenarios that were started without make
	@echo $(K6)

.PHONY: help dev build test presets race seen seen-outage scenarios scenario-reads observe torture k6 simulate-day fuzz schemathesis bench bench-limiter bench-reads bench-schedule kubernetes sbom release-check release lint vuln fmt services services-down

// Package e2e has the tests that start processes of freshet on the real services: each
// failure of an upstream, outages, killed workers, schedulers and query services, dead
// letters, emergency stops. Package harness starts the processes.
//
//	eval "$(scripts/services up)"
//	cd e2e && go test ./...                    # the short forms, minutes
//	cd e2e && go test -timeout 2h . -long      # the long forms too
//	cd e2e && go test . -quiet-machine         # judge speed too
//
// The other folders are the scenarios, which judge an installation by a table of figures.
// docs/testing.md lists the long runs.
package e2e

// Package e2e has the tests that run processes of freshet on the real services: failures of the
// upstream, outages, killed workers, schedulers and query services, dead letters, and emergency
// stops. Package harness starts the processes.
//
//	eval "$(scripts/services up)"
//	cd e2e && go test ./...                    # the short forms, minutes
//	cd e2e && go test -timeout 2h . -long      # the long forms too
//	cd e2e && go test . -quiet-machine         # also checks times; the machine must run nothing else
//
// Package scenarios is a program that judges an installation by a table of figures. Package
// browser tests the console in Chromium. docs/testing.md lists the long runs.
package e2e

// Package prometheus runs the unit tests of the alert and recording rules in
// deploy/prometheus with promtool.
package prometheus

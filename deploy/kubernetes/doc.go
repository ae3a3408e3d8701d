// Package kubernetes has no code: it holds manifests, and tests that they fit the
// API types of Kubernetes, each other, and the freshet of this checkout.
package kubernetes

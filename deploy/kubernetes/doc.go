// Package kubernetes has manifests and no code. Its tests check the manifests against the API
// types of Kubernetes, against each other, and against this checkout's freshet.
package kubernetes

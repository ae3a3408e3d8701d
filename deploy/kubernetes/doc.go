// Package kubernetes contains manifests and no code. Its tests check the manifests against the API
// types of Kubernetes, against each other, and against the commands and settings of freshet in the
// same commit. They render the chart of deploy/helm, which contains links to the manifests, and
// compare it with them.
package kubernetes

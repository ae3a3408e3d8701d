package kubernetes

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// judgeContainer checks a container and its ports. `name` identifies the container in the reported
// faults.
func (in *installation) judgeContainer(name string, c corev1.Container) {
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, requested := c.Resources.Requests[r]
		limit, limited := c.Resources.Limits[r]
		if !requested || !limited || request.Cmp(limit) > 0 {
			in.fault("%s: it must request %s, and no more than its limit", name, r)
		}
	}
	s := c.SecurityContext
	if s == nil || !is(s.ReadOnlyRootFilesystem, true) || !is(s.AllowPrivilegeEscalation, false) ||
		s.Capabilities == nil || fmt.Sprint(s.Capabilities.Drop) != "[ALL]" || len(s.Capabilities.Add) > 0 {
		in.fault("%s: securityContext must have a read-only root, no escalation, and drop ALL capabilities", name)
	}
	if c.Image != "freshet" {
		in.fault("%s: its image is %q; it must be freshet, which the kustomization replaces", name, c.Image)
	}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			in.judgeMemory(name, e.Value, c.Resources.Limits[corev1.ResourceMemory])
		}
	}
	if len(c.Ports) == 0 {
		return // a container without ports, such as the Job's, needs no probes
	}
	for path, probe := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/livez": c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || !hasPort(c, probe.HTTPGet.Port.StrVal) {
			in.fault("%s: a probe must request %s at a port that the container names", name, path)
		}
	}
	in.judgeListening(name, c)
}

// judgeMemory checks that GOMEMLIMIT is 80% to 95% of the memory limit.
func (in *installation) judgeMemory(name, text string, limit resource.Quantity) {
	soft, err := resource.ParseQuantity(strings.TrimSuffix(text, "B"))
	if part := soft.AsApproximateFloat64() / limit.AsApproximateFloat64(); err != nil || part < .8 || part > .95 {
		in.fault("%s: GOMEMLIMIT is %s, which must be some nine tenths of %s", name, text, limit.String())
	}
}

// judgeListening compares the container's ports with the addresses that its flags set.
func (in *installation) judgeListening(name string, c corev1.Container) {
	for _, p := range c.Ports {
		flag := map[string]string{"http": "--listen", "ops": "--ops-listen"}[p.Name]
		if i := slices.Index(c.Args, flag); i < 0 || c.Args[i+1] != fmt.Sprintf(":%d", p.ContainerPort) {
			in.fault("%s: the port %s is %d, and the arguments are %q", name, p.Name, p.ContainerPort, c.Args)
		}
	}
}

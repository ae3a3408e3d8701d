package kubernetes

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// workload is a Job or a Deployment with its pod template.
type workload struct {
	name string
	pods corev1.PodTemplateSpec
}

// containers returns the init containers and containers, in order.
func (w workload) containers() []corev1.Container {
	return append(slices.Clone(w.pods.Spec.InitContainers), w.pods.Spec.Containers...)
}

// installation contains the objects of all manifests, and the faults that were found in them.
type installation struct {
	workloads []workload
	data      map[string][]string // keys in each ConfigMap or Secret; the index is "ConfigMap NAME" or "Secret NAME"
	database  string              // URL of the database in the Secret
	config    string              // text of freshet.yaml in the ConfigMap
	faults    []string
}

func (in *installation) fault(format string, args ...any) {
	in.faults = append(in.faults, fmt.Sprintf(format, args...))
}

// judge decodes the manifests and checks the objects. It finds faults that the API types cannot
// express. `files` contains the texts of the manifests by file name.
func judge(files map[string]string) *installation {
	in := &installation{data: map[string][]string{}}
	var all []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		objects, err := decode(files[name])
		if err != nil {
			in.fault("%s: %v", name, err)
		}
		all = append(all, objects...)
	}
	for _, object := range all {
		in.collect(object)
	}
	in.judgeEncryption()
	for _, w := range in.workloads {
		in.judgePods(w)
	}
	for _, object := range all {
		in.judgeReferences(object)
	}
	return in
}

func (in *installation) collect(object runtime.Object) {
	meta := object.(metav1.Object)
	for _, err := range validation.ValidateLabels(meta.GetLabels(), field.NewPath(meta.GetName(), "labels")) {
		in.fault("%v", err)
	}
	switch o := object.(type) {
	case *corev1.ConfigMap:
		in.data["ConfigMap "+o.Name] = slices.Sorted(maps.Keys(o.Data))
		in.config = o.Data["freshet.yaml"]
	case *corev1.Secret:
		in.data["Secret "+o.Name] = slices.Sorted(maps.Keys(o.StringData))
		in.database += o.StringData["database-url"]
	case *batchv1.Job:
		in.workloads = append(in.workloads, workload{o.Name, o.Spec.Template})
	case *appsv1.Deployment:
		in.workloads = append(in.workloads, workload{o.Name, o.Spec.Template})
	}
}

// judgeReferences checks the selectors of an object and the ports that it references.
func (in *installation) judgeReferences(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Service:
		for _, p := range o.Spec.Ports {
			in.judgePort("Service "+o.Name, &metav1.LabelSelector{MatchLabels: o.Spec.Selector}, p.TargetPort)
		}
	case *policyv1.PodDisruptionBudget:
		in.selected("PodDisruptionBudget "+o.Name, o.Spec.Selector)
	case *appsv1.Deployment:
		for _, w := range in.selected("Deployment "+o.Name, o.Spec.Selector) {
			if w.name != o.Name {
				in.fault("Deployment %s: it selects the pods of %s", o.Name, w.name)
			}
		}
		for _, s := range o.Spec.Template.Spec.TopologySpreadConstraints {
			in.selected("Deployment "+o.Name+": topologySpreadConstraints", s.LabelSelector)
		}
	case *networkingv1.NetworkPolicy:
		in.selected("NetworkPolicy "+o.Name, &o.Spec.PodSelector)
		for _, rule := range o.Spec.Ingress {
			for _, p := range rule.Ports {
				in.judgePort("NetworkPolicy "+o.Name, &o.Spec.PodSelector, *p.Port)
			}
		}
	case *podMonitor:
		for _, e := range o.Spec.PodMetricsEndpoints {
			in.judgePort("PodMonitor "+o.Name, &o.Spec.Selector, intstr.FromString(e.Port))
		}
	}
}

// selected returns the workloads whose pods match the selector. It reports a fault if no workload
// matches.
func (in *installation) selected(name string, s *metav1.LabelSelector) (found []workload) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || selector.Empty() {
		in.fault("%s: its selector matches all pods or is invalid (%v)", name, err)
		return nil
	}
	for _, w := range in.workloads {
		if selector.Matches(labels.Set(w.pods.Labels)) {
			found = append(found, w)
		}
	}
	if len(found) == 0 {
		in.fault("%s: no pod has the labels %s", name, selector)
	}
	return found
}

// judgePort checks that the pods of a selector have a port with the given name. Pods of a Job need
// no ports.
func (in *installation) judgePort(name string, s *metav1.LabelSelector, port intstr.IntOrString) {
	served := false
	for _, w := range in.selected(name, s) {
		here := slices.ContainsFunc(w.containers(), func(c corev1.Container) bool { return hasPort(c, port.StrVal) })
		if !here && w.pods.Spec.RestartPolicy != corev1.RestartPolicyNever {
			in.fault("%s: the pods of %s have no port that is called %q", name, w.name, port.String())
		}
		served = served || here
	}
	if !served {
		in.fault("%s: no pod has a port that is called %q", name, port.String())
	}
}

func hasPort(c corev1.Container, name string) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// minGrace is the minimum terminationGracePeriodSeconds of each Deployment. Comments in the
// manifests explain the values.
var minGrace = map[string]int64{"freshet-query": 45, "freshet-worker": 50, "freshet-scheduler": 20}

func (in *installation) judgePods(w workload) {
	spec := w.pods.Spec
	if spec.TerminationGracePeriodSeconds == nil && minGrace[w.name] > 0 || spec.TerminationGracePeriodSeconds != nil && *spec.TerminationGracePeriodSeconds < minGrace[w.name] {
		in.fault("%s: terminationGracePeriodSeconds must be at least %d, or it is killed during its stop", w.name, minGrace[w.name])
	}
	if !is(spec.AutomountServiceAccountToken, false) || !is(spec.EnableServiceLinks, false) {
		in.fault("%s: automountServiceAccountToken and enableServiceLinks must be false: freshet does not use the API of Kubernetes", w.name)
	}
	if s := spec.SecurityContext; s == nil || !is(s.RunAsNonRoot, true) || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		in.fault("%s: securityContext must have runAsNonRoot and the seccomp profile RuntimeDefault", w.name)
	}
	sources := map[string]string{}
	for _, v := range spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			sources[v.Name] = "ConfigMap " + v.ConfigMap.Name
		case v.Secret != nil:
			sources[v.Name] = "Secret " + v.Secret.SecretName
		}
		if _, exists := in.data[sources[v.Name]]; !exists {
			in.fault("%s: the volume %s is of a %s that does not exist", w.name, v.Name, sources[v.Name])
		}
	}
	for _, c := range w.containers() {
		name := w.name + "/" + c.Name
		in.judgeContainer(name, c)
		mounted := in.mounted(name, c, sources)
		for _, e := range c.Env {
			if (e.Name == "FRESHET_CONFIG" || strings.HasSuffix(e.Name, "_FILE")) && !slices.Contains(mounted, e.Value) {
				in.fault("%s: %s is %s, which is not mounted", name, e.Name, e.Value)
			}
		}
		for _, file := range in.configured(c.Name) {
			if !slices.Contains(mounted, file) {
				in.fault("%s: freshet.yaml names %s, which is not mounted", name, file)
			}
		}
	}
	if port := w.pods.Annotations["prometheus.io/port"]; port != "" {
		for _, c := range spec.Containers {
			if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port && p.Name == "ops" }) {
				in.fault("%s: prometheus.io/port is %s, which is not the port ops", w.name, port)
			}
		}
	}
}

// mounted returns the paths of the mounted files of a container.
func (in *installation) mounted(name string, c corev1.Container, sources map[string]string) (files []string) {
	for _, m := range c.VolumeMounts {
		from, there := sources[m.Name]
		if !there || !m.ReadOnly || m.SubPath != "" {
			in.fault("%s: the mount %s must be of a volume of the pod, read-only, and whole, so that changes of it are visible", name, m.Name)
		}
		for _, key := range in.data[from] {
			files = append(files, m.MountPath+"/"+key)
		}
	}
	return files
}

var fileSettings = regexp.MustCompile(`(?m)^[^#\n]*\b(passwordFile|secretFile): ([^,}\s]+)`)

// configured returns the paths of secret files in freshet.yaml that a container must be able to
// read. All containers read the passwords of the services; only workers read the credentials of
// upstreams.
func (in *installation) configured(container string) (files []string) {
	for _, m := range fileSettings.FindAllStringSubmatch(in.config, -1) {
		if m[1] == "passwordFile" || container == "worker" {
			files = append(files, m[2])
		}
	}
	return files
}

func is(b *bool, want bool) bool { return b != nil && *b == want }

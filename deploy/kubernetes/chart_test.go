package kubernetes

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// renderChart returns the objects of the chart as YAML, as Helm renders them for the release freshet
// in the namespace freshet. `values` are the chart's values in YAML. The result does not contain the
// notes that Helm prints after an installation.
func renderChart(t *testing.T, values string) (string, error) {
	t.Helper()
	chart, err := loader.Load(filepath.Join("..", "helm", "freshet"))
	if err != nil {
		t.Fatal(err)
	}
	given, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: "freshet", Namespace: "freshet", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return "", err
	}
	rendered, err := engine.Render(chart, all)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if filepath.Ext(name) == ".yaml" && strings.TrimSpace(rendered[name]) != "" {
			texts = append(texts, strings.TrimSpace(rendered[name]))
		}
	}
	return strings.Join(texts, "\n---\n"), nil
}

// required are the values that have no default: an image, and a configuration.
func required(t *testing.T) map[string]any {
	t.Helper()
	return map[string]any{
		"image":  map[string]any{"repository": kustomization(t).Images[0].NewName},
		"config": judge(manifests(t)).config,
	}
}

// chartObjects returns the rendered objects for the required values and more values in YAML.
func chartObjects(t *testing.T, more string) []runtime.Object {
	t.Helper()
	values := required(t)
	if err := yaml.Unmarshal([]byte(more), &values); err != nil {
		t.Fatal(err)
	}
	given, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	text, err := renderChart(t, string(given))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return objects
}

var hashes = regexp.MustCompile(`(?m)^ *checksum/config: [0-9a-f]{64}\n|^ *(helm.sh/chart|app.kubernetes.io/managed-by): .*\n`)

// texts returns the text of each object by kind and name. It removes the parts that only the chart
// adds: its labels, the checksum of the configuration, and the hash in the name of the Job.
func texts(t *testing.T, objects []runtime.Object) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, o := range objects {
		if job := o.(metav1.Object); strings.HasPrefix(job.GetName(), "freshet-prepare") {
			job.SetName("freshet-prepare")
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all[o.GetObjectKind().GroupVersionKind().Kind+" "+o.(metav1.Object).GetName()] = hashes.ReplaceAllString(string(text), "")
	}
	return all
}

func TestChart_DefaultsAreTheManifests(t *testing.T) {
	got, want := texts(t, chartObjects(t, "")), texts(t, rendered(t))
	delete(want, "Namespace freshet") // Helm does not manage the namespace of a release
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("objects: got %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

const otherValues = `
image: {repository: registry.example/other, digest: "sha256:` + zeros + `"}
config: |
  # A comment stays.
  kafka: {brokers: ["kafka:9092"]}
  redis: {mode: single, addresses: ["redis:6379"]}
  ops: {tls: {certFile: /etc/freshet/tls/tls.crt, keyFile: /etc/freshet/tls/tls.key}}
  query: {console: off}
  log: {format: json}
  sources:
    shop:
      baseURL: https://api.shop.example
      auth: {header: X-Key, secretEnv: SHOP_KEY}
      quota: {policies: [{name: second, limit: 500, window: 1s}, {name: day, limit: 20000000, window: day, timeZone: UTC}]}
      facets: {product: {documents: {product: {path: "/products/{key}"}}}}
secrets: {services: my-services, admin: my-admin, upstream: my-upstream, tls: my-tls}
query: {replicas: null}
worker:
  replicas: 5
  resources: {limits: {memory: 3Gi}}
  env: [{name: SHOP_KEY, valueFrom: {secretKeyRef: {name: my-upstream, key: shop}}}]
scheduler: {resources: {requests: {memory: 300Mi}, limits: {memory: 500Mi}}}
podSpec: {nodeSelector: {disk: ssd}, securityContext: {fsGroup: 7}}
networkPolicy: {prometheusNamespace: metrics, servicePorts: [5432, 6379, 9092], upstreamPorts: [443, 8443]}
ingress: {enabled: true, className: nginx, host: freshet.example, tlsSecret: freshet-cert, annotations: {a: "1"}}
prometheusOperator: {podMonitor: true, alerts: true, labels: {release: prometheus}}
`

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

func TestChart_OtherValuesAreValid(t *testing.T) {
	text, err := renderChart(t, otherValues)
	if err != nil {
		t.Fatal(err)
	}
	secrets := strings.NewReplacer("name: freshet-", "name: my-", "  credential:", "  shop:").Replace(manifests(t)["secrets.example.yaml"])
	files := map[string]string{
		"chart":   strings.ReplaceAll(text, "image: registry.example/other@sha256:"+zeros, "image: freshet"),
		"secrets": secrets + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: my-tls}\nstringData: {tls.crt: a, tls.key: b}\n",
	}
	in := judge(files)
	for _, fault := range in.faults {
		t.Error(fault)
	}
	if len(in.workloads) != 4 {
		t.Errorf("workloads: got %d, want 4", len(in.workloads))
	}
	for _, w := range in.workloads {
		for _, c := range w.containers() {
			if why := refused(append(c.Command, c.Args...)); why != "" {
				t.Errorf("%s/%s: %s", w.name, c.Name, why)
			}
			if text, err := checked(t, files, c, t.TempDir()); err != nil || !strings.Contains(text, "20,000,000") {
				t.Errorf("%s/%s: got %v, want a valid configuration with 20,000,000 calls\n%s", w.name, c.Name, err, text)
			}
		}
	}
}

// find returns the object with this name.
func find[T metav1.Object](t *testing.T, objects []runtime.Object, name string) (found T) {
	t.Helper()
	for _, o := range objects {
		if one, ok := o.(T); ok && strings.HasPrefix(one.GetName(), name) {
			return one
		}
	}
	t.Fatalf("%T %s: got none, want one", found, name)
	return found
}

func TestChart_ValuesReachTheObjects(t *testing.T) {
	objects := chartObjects(t, otherValues)
	config := find[*corev1.ConfigMap](t, objects, "freshet").Data["freshet.yaml"]
	query, worker := find[*appsv1.Deployment](t, objects, "freshet-query"), find[*appsv1.Deployment](t, objects, "freshet-worker")
	container := worker.Spec.Template.Spec.Containers[0]
	limits := find[*networkingv1.NetworkPolicy](t, objects, "freshet")
	ingress := find[*networkingv1.Ingress](t, objects, "freshet-query").Spec
	monitor := find[*podMonitor](t, objects, "freshet")
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"beginning of the configuration", strings.HasPrefix(config, "# A comment stays.\n"), true},
		{"console in the configuration", strings.Contains(config, "console: off}\n"), true},
		{"replicas of query are unset", query.Spec.Replicas == nil, true},
		{"replicas of worker", *worker.Spec.Replicas, int32(5)},
		{"memory of worker", container.Resources.Limits.Memory().String(), "3Gi"},
		{"CPU of worker", container.Resources.Limits.Cpu().String(), "2"},
		{"last variable of worker", container.Env[len(container.Env)-1].ValueFrom.SecretKeyRef.Key, "shop"},
		{"scheme of a probe", container.LivenessProbe.HTTPGet.Scheme, corev1.URISchemeHTTPS},
		{"image", container.Image, "registry.example/other@sha256:" + zeros},
		{"node selector", worker.Spec.Template.Spec.NodeSelector["disk"], "ssd"},
		{"group of files", *worker.Spec.Template.Spec.SecurityContext.FSGroup, int64(7)},
		{"user", *worker.Spec.Template.Spec.SecurityContext.RunAsUser, int64(65532)},
		{"last port of the services", limits.Spec.Egress[1].Ports[2].Port.IntValue(), 9092},
		{"ports of DNS", len(limits.Spec.Egress[0].Ports), 2},
		{"namespace of Prometheus", limits.Spec.Ingress[0].From[0].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"], "metrics"},
		{"last port of the upstream", find[*networkingv1.NetworkPolicy](t, objects, "freshet-worker").Spec.Egress[0].Ports[1].Port.IntValue(), 8443},
		{"class of the ingress", *ingress.IngressClassName, "nginx"},
		{"host of the ingress", ingress.Rules[0].Host, "freshet.example"},
		{"certificate of the ingress", ingress.TLS[0].SecretName, "freshet-cert"},
		{"scheme of the PodMonitor", monitor.Spec.PodMetricsEndpoints[0].Scheme, "https"},
		{"label of the PodMonitor", monitor.Labels["release"], "prometheus"},
		{"label of the alerts", find[*prometheusRule](t, objects, "freshet").Labels["release"], "prometheus"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
}

func TestChart_ChangesRestartTheRoles(t *testing.T) {
	type marks struct{ job, annotation string }
	of := func(more string) marks {
		objects := chartObjects(t, more)
		pods := find[*appsv1.Deployment](t, objects, "freshet-worker").Spec.Template
		for _, o := range objects {
			if name := o.(metav1.Object).GetName(); strings.HasPrefix(name, "freshet-prepare-") {
				return marks{name, pods.Annotations["checksum/config"]}
			}
		}
		t.Fatal("got no Job, want one")
		return marks{}
	}
	before, config := of(""), of(otherValues)
	for _, more := range []string{"image: {repository: a, tag: v9}", "podSpec: {nodeSelector: {disk: ssd}}"} {
		if got := of(more); got.job == before.job || got.annotation != before.annotation {
			t.Errorf("%s: got %v, want another Job than %v and the same annotation", more, got, before)
		}
	}
	if config.job == before.job || config.annotation == before.annotation {
		t.Errorf("another configuration: got %v, want another Job and annotation than %v", config, before)
	}
	if again := of(""); again != before {
		t.Errorf("the same values: got %v, want %v", again, before)
	}
}

func TestChart_AlertsAreTheRulesOfPrometheus(t *testing.T) {
	var want []string
	files, err := filepath.Glob(filepath.Join("..", "prometheus", "rules", "*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("rules: got %v, %v, want some", files, err)
	}
	type group = struct {
		Name     string           `json:"name"`
		Interval string           `json:"interval"`
		Rules    []map[string]any `json:"rules"`
	}
	encode := func(groups []group) (all []string) {
		for _, g := range groups {
			text, err := yaml.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(text))
		}
		return all
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules struct{ Groups []group }
		if err := yaml.UnmarshalStrict(text, &rules); err != nil {
			t.Fatal(err)
		}
		want = append(want, encode(rules.Groups)...)
	}
	got := encode(find[*prometheusRule](t, chartObjects(t, "prometheusOperator: {alerts: true}"), "freshet").Spec.Groups)
	if !slices.Equal(got, want) {
		t.Errorf("groups: got\n%s\nwant\n%s", got, want)
	}
}

func TestChart_BadValuesAreExplained(t *testing.T) {
	const image, config = "image: {repository: a}\n", "config: '{kafka: {brokers: [a]}, redis: {addresses: [a]}, sources: {a: {preset: nexon}}}'\n"
	if _, err := renderChart(t, image+config); err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{
		config:                                    "image.repository is empty; set the image, as in --set image.repository=",
		image:                                     "config is empty; pass your configuration file with --set-file config=freshet.yaml",
		image + "config: '{a: ['":                 "config is not YAML",
		image + "config: 'log: {}'":               "config has no kafka.brokers",
		image + "config: 'kafka: [a]'":            "config has no kafka.brokers",
		image + "config: 'kafka:'":                "config has no kafka.brokers",
		image + "config: {kafka: {}}":             "at '/config': got object, want string",
		image + config + "worker: {replicas: 0}":  "at '/worker/replicas': minimum: got 0, want 1",
		image + config + "query: {replicas: two}": "at '/query/replicas': got string, want",
		image + config + "workers: {replicas: 3}": "additional properties 'workers' not allowed",
		image + config + "worker: {replica: 3}":   "additional properties 'replica' not allowed",
		image + config + "worker: {resources: {limits: {memory: 2G}}}":                   "at '/worker/resources/limits/memory': '2G' does not match pattern",
		image + config + "podSpec: {containers: []}":                                     "invalid propertyName 'containers'",
		image + config + "ingress: {enabled: true}":                                      "ingress.host is empty; set the host name",
		image + config + "networkPolicy: {upstreamPorts: []}":                            "at '/networkPolicy/upstreamPorts': minItems: got 0, want 1",
		image + config + "secrets: {services: ''}":                                       "at '/secrets/services': minLength: got 0, want 1",
		"image: {repository: a, digest: latest}\n" + config:                              "at '/image/digest': 'latest' does not match pattern",
		strings.Replace(image+config, "sources: {a: {preset: nexon}}", "sources: {}", 1): "config has no sources",
	} {
		if _, err := renderChart(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want an error that contains %q", values, err, want)
		}
	}
}

func TestChart_NetworkPoliciesAreOptional(t *testing.T) {
	for _, o := range chartObjects(t, "networkPolicy: {enabled: false}") {
		if policy, ok := o.(*networkingv1.NetworkPolicy); ok {
			t.Errorf("NetworkPolicy: got %s, want none", policy.Name)
		}
	}
}

package kubernetes

import (
	"strings"
	"testing"
)

// mistakes are typical mistakes in one manifest. To make a mistake, the test replaces the text "old"
// in the file by the text "now". The function judge must then report the text "fault".
var mistakes = []struct{ file, old, now, fault string }{
	{"namespace.yaml", "metadata:", "metdata:", `unknown field "metdata"`},
	{"namespace.yaml", "freshet/step: prepare", "freshet/step: not a value", "a valid label must be"},
	{"namespace.yaml", "apiVersion: v1", "apiVersion: v2", `no kind "Namespace" is registered for version "v2"`},
	{"config.yaml", "name: freshet\n", "name: fresher\n", "of a ConfigMap freshet that does not exist"},
	{"config.yaml", "  freshet.yaml: |", "  freshet.yml: |", "FRESHET_CONFIG is /etc/freshet/config/freshet.yaml, which is not mounted"},
	{"config.yaml", "addresses: [redis.example:6379]\n      tls: {enabled: true}", "addresses: [redis.example:6379]", "redis has a password, and redis.tls is not enabled"},
	{"config.yaml", "9093]\n      tls: {enabled: true}", "9093]", "kafka.sasl has a password, and kafka.tls is not enabled"},
	{"secrets.example.yaml", "sslmode=verify-full", "sslmode=require", "not sslmode=verify-full"},
	{"scheduler.yaml", `--ops-listen, ":9464"`, `--ops-listen, ":9465"`, `the port ops is 9464, and the arguments are ["scheduler" "--ops-listen" ":9465"]`},
	{"query.yaml", `--listen, ":8080"`, `--listen, "127.0.0.1:8080"`, "the port http is 8080"},
	{"config.yaml", "services/kafka-password", "services/kafka", "freshet.yaml names /etc/freshet/services/kafka, which is not mounted"},
	{"query.yaml", "admin/token", "admin/tokens", "FRESHET_ACCESS_ADMIN_TOKEN_FILE is /etc/freshet/admin/tokens, which is not mounted"},
	{"config.yaml", "\ndata:\n", "\ndata:\n  freshet.yaml: twice\n", `key "freshet.yaml" already set`},
	{"secrets.example.yaml", "name: freshet-admin", "name: freshet-admins", "of a Secret freshet-admin that does not exist"},
	{"secrets.example.yaml", "database-url:", "database:", "/etc/freshet/services/database-url, which is not mounted"},
	{"secrets.example.yaml", "stringData:", "stringdata:", `unknown field "stringdata"`},
	{"prepare.yaml", "backoffLimit: 5", "backoffLimit: five", "cannot unmarshal string"},
	{"prepare.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "freshet-prepare/migrate: securityContext"},
	{"prepare.yaml", "limits: {cpu: 500m, memory: 256Mi}", "limits: {cpu: 500m}", "freshet-prepare/topics: it must request memory"},
	{"query.yaml", "replicas: 2", "replicas: 2\n  replicas: 3", `key "replicas" already set`},
	{"query.yaml", "targetPort: http", "targetPort: web", `Service freshet-query: no pod has a port that is called "web"`},
	{"query.yaml", "selector: {app.kubernetes.io/name: freshet,", "selector: {app.kubernetes.io/name: freshed,", "Service freshet-query: no pod has the labels"},
	{"query.yaml", "    matchLabels: {app.kubernetes.io/name: freshet, app.kubernetes.io/component: query}", "    matchLabels: {app.kubernetes.io/component: queries}", "PodDisruptionBudget freshet-query: no pod has the labels"},
	{"query.yaml", "path: /readyz, port: ops", "path: /readyz, port: op", "a probe must request /readyz"},
	{"query.yaml", "path: /livez", "path: /readyz", "a probe must request /livez"},
	{"query.yaml", `prometheus.io/port: "9464"`, `prometheus.io/port: "9466"`, "prometheus.io/port is 9466"},
	{"query.yaml", "image: freshet", "image: freshet:latest", "its image is"},
	{"query.yaml", "name: admin, mountPath", "name: administration, mountPath", "the mount administration"},
	{"worker.yaml", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30", "is killed during its stop"},
	{"worker.yaml", "GOMEMLIMIT, value: 1800MiB", "GOMEMLIMIT, value: 2GiB", "GOMEMLIMIT is 2GiB"},
	{"worker.yaml", "limits: {cpu: \"2\", memory: 2Gi}", "limits: {cpu: 100m, memory: 2Gi}", "it must request cpu"},
	{"config.yaml", "upstream/credential", "upstream/key", "freshet-worker/worker: freshet.yaml names /etc/freshet/upstream/key, which is not mounted"},
	{"worker.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "freshet-worker: securityContext must have runAsNonRoot"},
	{"scheduler.yaml", "drop: [ALL]", "drop: [NET_RAW]", "freshet-scheduler/scheduler: securityContext"},
	{"scheduler.yaml", "      labels: *selector", "      labels: {app.kubernetes.io/name: freshet, app.kubernetes.io/component: query}", "Deployment freshet-query: it selects the pods of freshet-scheduler"},
	{"scheduler.yaml", "          labelSelector: {matchLabels: *selector}", "          labelSelector: {matchLabels: {app: scheduler}}", "topologySpreadConstraints: no pod has the labels"},
	{"scheduler.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "enableServiceLinks must be false"},
	{"network.yaml", "port: ops", "port: op", `NetworkPolicy freshet: the pods of freshet-query have no port that is called "op"`},
	{"network.yaml", "component: worker", "component: workers", "NetworkPolicy freshet-worker: no pod has the labels"},
	{"network.yaml", "policyTypes: [Egress]", "policyType: [Egress]", `unknown field "spec.policyType"`},
	{"podmonitor.example.yaml", "port: ops", "port: metrics", `PodMonitor freshet: the pods of freshet-query have no port that is called "metrics"`},
	{"podmonitor.example.yaml", "interval:", "every:", `unknown field "spec.podMetricsEndpoints[0].every"`},
	{"podmonitor.example.yaml", "kind: PodMonitor", "kind: HorizontalPodAutoscaler", `no kind "HorizontalPodAutoscaler"`},
}

func TestValidate_FindsMistakes(t *testing.T) {
	broken := map[string]bool{}
	for _, s := range mistakes {
		files := manifests(t)
		text := strings.Replace(files[s.file], s.old, s.now, 1)
		if text == files[s.file] {
			t.Errorf("%s: got no %q, want it to replace", s.file, s.old)
		}
		files[s.file], broken[s.file] = text, true
		if faults := strings.Join(judge(files).faults, "\n"); !strings.Contains(faults, s.fault) {
			t.Errorf("faults of %s with %q: got\n%s\nwant %q in them", s.file, s.now, faults, s.fault)
		}
	}
	for name := range manifests(t) {
		if !broken[name] {
			t.Errorf("mistakes in %s: got none, want at least one", name)
		}
	}
}

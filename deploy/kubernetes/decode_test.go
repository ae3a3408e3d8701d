package kubernetes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// podMonitor contains the fields of PodMonitor (a kind of the Prometheus operator) that the
// manifests use.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel            string               `json:"jobLabel"`
		Selector            metav1.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
			Scheme   string `json:"scheme"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

func (p *podMonitor) DeepCopyObject() runtime.Object { c := *p; return &c }

// prometheusRule contains the fields of PrometheusRule, a kind of the Prometheus operator.
type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []struct {
			Name     string           `json:"name"`
			Interval string           `json:"interval"`
			Rules    []map[string]any `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func (p *prometheusRule) DeepCopyObject() runtime.Object { c := *p; return &c }

// types lists the API types that the manifests may use. Autoscaling types are missing on purpose: a
// comment in worker.yaml explains the reason.
var types = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(s))
	utilruntime.Must(appsv1.AddToScheme(s))
	utilruntime.Must(batchv1.AddToScheme(s))
	utilruntime.Must(policyv1.AddToScheme(s))
	utilruntime.Must(networkingv1.AddToScheme(s))
	operator := schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}
	s.AddKnownTypeWithName(operator.WithKind("PodMonitor"), &podMonitor{})
	s.AddKnownTypeWithName(operator.WithKind("PrometheusRule"), &prometheusRule{})
	return s
}()

// strictly is a YAML decoder that rejects unknown and duplicate fields, which a cluster would
// ignore.
var strictly = json.NewSerializerWithOptions(json.DefaultMetaFactory, types, types, json.SerializerOptions{Yaml: true, Strict: true})

// decode returns the objects in a file. Their apiVersion and kind decide their Go types.
func decode(text string) ([]runtime.Object, error) {
	var all []runtime.Object
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, _, err := strictly.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		all = append(all, object)
	}
}

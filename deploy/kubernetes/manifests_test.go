package kubernetes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	kustomize "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// manifests returns the texts of all manifests by file name, without the kustomization.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		if name == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}

func TestManifests_AreValid(t *testing.T) {
	in := judge(manifests(t))
	for _, fault := range in.faults {
		t.Error(fault)
	}
	if len(in.workloads) != 4 || len(in.data) != 4 || in.config == "" {
		t.Errorf("got %d workloads, %d ConfigMaps and Secrets, %d bytes of configuration; want 4, 4, some", len(in.workloads), len(in.data), len(in.config))
	}
}

func kustomization(t *testing.T) kustomize.Kustomization {
	t.Helper()
	text, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k kustomize.Kustomization
	if err := yaml.UnmarshalStrict(text, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKustomization_ListsEveryManifest(t *testing.T) {
	var want []string
	for name := range manifests(t) {
		if !strings.HasSuffix(name, ".example.yaml") {
			want = append(want, name)
		}
	}
	have := slices.Sorted(slices.Values(kustomization(t).Resources))
	if slices.Sort(want); !slices.Equal(have, want) {
		t.Errorf("resources: got %v, want %v", have, want)
	}
}

func TestExamples_UseTheSameNamespace(t *testing.T) {
	namespace := kustomization(t).Namespace
	for name, text := range manifests(t) {
		objects, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if have := o.(metav1.Object).GetNamespace(); strings.HasSuffix(name, ".example.yaml") && have != namespace {
				t.Errorf("%s: got namespace %q, want %q", name, have, namespace)
			}
		}
	}
}

// rendered returns the objects that kustomize generates from the folder deploy/kubernetes.
func rendered(t *testing.T) []runtime.Object {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), ".")
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestKustomize_SetsImageAndNamespace(t *testing.T) {
	k := kustomization(t)
	image := k.Images[0].NewName + ":" + k.Images[0].NewTag
	containers := 0
	for _, o := range rendered(t) {
		meta := o.(metav1.Object)
		if _, itself := o.(*corev1.Namespace); itself && meta.GetName() != k.Namespace || !itself && meta.GetNamespace() != k.Namespace {
			t.Errorf("%T %s: got namespace %q, want %q", o, meta.GetName(), meta.GetNamespace(), k.Namespace)
		}
		for _, c := range podsOf(o).containers() {
			containers++
			if c.Image != image {
				t.Errorf("%s: got image %s, want %s", c.Name, c.Image, image)
			}
		}
		for _, v := range podsOf(o).pods.Spec.Volumes {
			if v.Secret != nil && *v.Secret.DefaultMode != 0o440 {
				t.Errorf("%s: files of %s: got mode %o, want 440, for root and the pod's group", meta.GetName(), v.Name, *v.Secret.DefaultMode)
			}
		}
	}
	if containers != 5 {
		t.Errorf("containers: got %d, want 5", containers)
	}
}

func podsOf(o runtime.Object) workload {
	switch o := o.(type) {
	case *batchv1.Job:
		return workload{o.Name, o.Spec.Template}
	case *appsv1.Deployment:
		return workload{o.Name, o.Spec.Template}
	}
	return workload{}
}

// An operator applies the objects with the label freshet/step=prepare first. They must include
// everything that the Job needs, and no Deployment.
func TestPrepareStep_HasTheJobAndItsNeeds(t *testing.T) {
	var first []string
	for _, o := range rendered(t) {
		if meta := o.(metav1.Object); meta.GetLabels()["freshet/step"] == "prepare" {
			first = append(first, o.GetObjectKind().GroupVersionKind().Kind+" "+meta.GetName())
		}
	}
	want := []string{
		"ConfigMap freshet", "Job freshet-prepare", "Namespace freshet",
		"NetworkPolicy freshet", "NetworkPolicy freshet-query", "NetworkPolicy freshet-worker",
	}
	if slices.Sort(first); !slices.Equal(first, want) {
		t.Errorf("objects of the first step: got %v, want %v", first, want)
	}
}

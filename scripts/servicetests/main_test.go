package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFind_FollowsHelpersToAService(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("servicetest/servicetest.go", `package servicetest
func address() {}
func Kafka() { address() }
func Name() {}
`)
	write("servicetest/s_test.go", `package servicetest
func TestKafka(t *testing.T) { Kafka() }
func TestName(t *testing.T) { Name() }
`)
	write("a/a_test.go", `package a
func TestDirect(t *testing.T) { servicetest.Kafka() }
func TestByHelper(t *testing.T) { helper{}.start() }
func TestEmbedded(t *testing.T) { servicetest.Name() }
type helper struct{}
func (helper) start() { servicetest.Kafka() }
`)
	write("b/b_test.go", "package b\nfunc TestKafka(t *testing.T) { Kafka() }\nfunc Kafka() {}\n")
	write("other/go.mod", "module other\n")
	write("other/o_test.go", "package other\nfunc TestOther(t *testing.T) { servicetest.Kafka() }\n")

	found, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := found["a"], []string{"TestByHelper", "TestDirect"}; !slices.Equal(got, want) {
		t.Errorf("tests of a that need a service: got %v, want %v", got, want)
	}
	if got, want := found[servicePackage], []string{"TestKafka"}; !slices.Equal(got, want) {
		t.Errorf("tests of servicetest that need a service: got %v, want %v", got, want)
	}
	if len(found) != 2 {
		t.Errorf("folders with tests that need a service: got %v, want only a and servicetest", found)
	}
}

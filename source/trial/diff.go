package trial

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Changed returns the paths of the values that differ between two contents, in the form of the
// settings select and ignore, sorted. An index of a list is written "*".
func Changed(a, b []byte) []string {
	paths := map[string]bool{}
	collectChanges(decode(a), decode(b), nil, paths)
	return slices.Sorted(maps.Keys(paths))
}

// decode returns the decoded JSON, or nil. Numbers keep their text.
func decode(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}

var escapeName = strings.NewReplacer(`\`, `\\`, `.`, `\.`)

func collectChanges(a, b any, path []string, into map[string]bool) {
	objectA, isObjectA := a.(map[string]any)
	objectB, isObjectB := b.(map[string]any)
	listA, isListA := a.([]any)
	listB, isListB := b.([]any)
	switch {
	case isObjectA && isObjectB:
		for _, name := range slices.Sorted(maps.Keys(objectA)) {
			below := append(slices.Clone(path), escapeName.Replace(name))
			if other, there := objectB[name]; there {
				collectChanges(objectA[name], other, below, into)
			} else {
				into[strings.Join(below, ".")] = true
			}
		}
		for name := range objectB {
			if _, there := objectA[name]; !there {
				into[strings.Join(append(slices.Clone(path), escapeName.Replace(name)), ".")] = true
			}
		}
	case isListA && isListB && len(listA) == len(listB):
		for i := range listA {
			collectChanges(listA[i], listB[i], append(slices.Clone(path), "*"), into)
		}
	case !reflect.DeepEqual(a, b):
		into[strings.Join(path, ".")] = true
	}
}

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/store"
)

// contentsOf returns the contents of a number of keys before any change, and the hashes of these
// contents.
func contentsOf(t *testing.T, keys int) (hashes, texts []string) {
	t.Helper()
	contents, err := harness.Contents(t.Context(), facet, "basic")
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		payload, err := contents[i].Payload()
		if err != nil {
			t.Fatal(err)
		}
		text, err := store.Snapshot{State: store.State{Encoding: payload.Encoding}, Payload: payload.Bytes}.Decode(nil)
		if err != nil {
			t.Fatal(err)
		}
		hashes, texts = append(hashes, hex.EncodeToString(contents[i].Hash[:])), append(texts, string(text))
	}
	return hashes, texts
}

func TestTortureJudge_SeesOldContents(t *testing.T) {
	s := &site{Site: &harness.Site{Facets: map[string]string{facet: "basic"}}}
	const keys = 40
	hashes, texts := contentsOf(t, keys)
	changed := time.Now()
	before, after := changed.Add(-time.Second), changed.Add(time.Second)
	for name, c := range map[string]struct {
		checked time.Time
		swapped bool
		missed  bool
	}{
		"checked before the change": {before, false, false},
		"checked after it":          {after, false, true},
		"a payload of another":      {before, true, true},
	} {
		stored, payloads := map[string]storedState{}, map[string]string{}
		l := &tortureLoad{served: map[servedAnswer]promise{}, changes: []time.Time{changed}}
		for i := range keys {
			key := fmt.Sprint("content", i)
			stored[key], payloads[key] = storedState{hash: hashes[i], checked: c.checked.UnixMicro()}, texts[i]
			if c.swapped {
				payloads[key] = texts[(i+1)%keys]
			}
			l.served[servedAnswer{key, c.checked.UnixMicro(), sha256.Sum256([]byte(payloads[key]))}] = promise{}
		}
		l.reads.Store(keys)
		var judged, answered table
		if err := judged.judgeContents(t.Context(), s, stored, payloads, l.changes); err != nil || judged.missed != c.missed {
			t.Errorf("%s: stored contents: got missed %t, %v, want %t", name, judged.missed, err, c.missed)
		}
		if err := answered.judgeAnswers(t.Context(), s, l); err != nil || answered.missed != c.missed {
			t.Errorf("%s: responses: got missed %t, %v, want %t", name, answered.missed, err, c.missed)
		}
	}
}

// The judge must report two errors: an existing entity that is stored as not found, and stored
// contents of an entity that never existed.
func TestTortureJudge_SeesWrongNotFound(t *testing.T) {
	s := &site{Site: &harness.Site{Facets: map[string]string{facet: "basic"}}}
	now := time.Now().UnixMicro()
	for key, c := range map[string]struct {
		now   storedState
		wrong string
	}{
		"k1":        {storedState{version: 5, checked: now, notFound: true}, "1 of 1"},
		"refused1":  {storedState{version: 5, checked: now, notFound: true}, "1 of 1"},
		"broken1":   {storedState{version: 5, checked: now, hash: "a"}, "1 of 1"},
		"notfound1": {storedState{version: 5, checked: now, notFound: true}, "0 of 1"},
		"notfound2": {storedState{version: 5, checked: now, hash: "a"}, "1 of 1"},
	} {
		var judged table
		if err := judged.judgeContents(t.Context(), s, map[string]storedState{key: c.now}, nil, nil); err != nil {
			t.Fatal(err)
		}
		for _, l := range judged.lines {
			if strings.HasPrefix(l.what, "contents that the upstream") && l.figure != c.wrong {
				t.Errorf("%s, %+v: got %s wrong, want %s", key, c.now, l.figure, c.wrong)
			}
		}
	}
	load := &tortureLoad{notFound: []promise{{key: "k1"}}}
	load.reads.Store(1)
	var judged table
	if err := judged.judgeAnswers(t.Context(), s, load); err != nil || !judged.missed {
		t.Errorf("404 for an existing entity: got missed %t, %v, want true", judged.missed, err)
	}
}

package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store/postgres"
)

// contents judges that what is stored is what the upstream had at the last check of it,
// or later: another upstream of the same seed goes through the same changes.
func (t *table) contents(ctx context.Context, s *site, stored map[string]seen, payloads map[string]string, changes []time.Time) error {
	upstream := simulator.New(simulator.Config{Seed: 1})
	defer upstream.Close()
	server := httptest.NewServer(upstream)
	defer server.Close()
	var config source.Config
	if err := yaml.Unmarshal([]byte(preset(server.URL, s.facets)), &config); err != nil {
		return err
	}
	src, err := source.New("nexon", config, "a-key", 1)
	if err != nil {
		return err
	}
	defer src.Close()
	left := maps.Clone(stored)
	maps.DeleteFunc(left, func(_ string, now seen) bool { return now.absent })
	of, garbled := len(left), []string{}
	for step := 0; step <= len(changes); step++ {
		if step > 0 {
			if err := upstream.Control(simulator.Control{ChangePercent: changePercent}); err != nil {
				return err
			}
		}
		for key, now := range left {
			if step < len(changes) && changes[step].UnixMicro() < now.checked {
				continue // it was another by then
			}
			hash, text, err := read(ctx, src, key)
			if err != nil {
				return err
			}
			if hash != now.hash {
				continue
			}
			if text != payloads[key] {
				garbled = append(garbled, fmt.Sprintf("%s: %.80s; want %.80s", key, payloads[key], text))
			}
			delete(left, key)
		}
	}
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(left)) {
		wrong = append(wrong, fmt.Sprintf("%s: %+v", key, left[key]))
	}
	t.none("contents that the upstream has not had since", of, wrong)
	t.none("contents that are not what their hash says", of, garbled)
	t.figure("  of so many changes", "%d", len(changes))
	return nil
}

// read returns what is made of an entity's document, and its hash.
func read(ctx context.Context, src *source.Source, key string) (hash, text string, err error) {
	plan, err := src.Plan(source.Request{Facet: facet, Key: key})
	if err != nil {
		return "", "", err
	}
	answers, err := src.Fetch(ctx, plan, freely{})
	if err != nil {
		return "", "", err
	}
	outcome := src.Read(answers, time.Now())
	if outcome.Class != source.OK {
		return "", "", fmt.Errorf("%s: %w", outcome.Class, outcome.Err)
	}
	defer outcome.Content.Release()
	return hex.EncodeToString(outcome.Content.Hash[:]), string(outcome.Content.JSON), nil
}

// payloads returns what is stored of each, as text.
func (s *site) payloads(ctx context.Context, stored map[string]seen) (map[string]string, error) {
	db, err := postgres.Open(ctx, s.database)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	all := map[string]string{}
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(stored)), 200) {
		var of []schemas.Entity
		for _, key := range keys {
			of = append(of, schemas.Entity{Source: s.source, Facet: facet, Key: key})
		}
		found, err := db.GetAll(ctx, of)
		if err != nil {
			return nil, err
		}
		for i, snapshot := range found {
			if !snapshot.HasContent() {
				continue
			}
			text, err := snapshot.Decode(nil)
			if err != nil {
				return nil, err
			}
			all[keys[i]] = string(text)
		}
	}
	return all, nil
}

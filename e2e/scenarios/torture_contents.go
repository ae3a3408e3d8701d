package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store/postgres"
)

// neverFresh says whether a key is of those that do not become fresh.
func neverFresh(key string) bool {
	return strings.HasPrefix(key, "absent") || strings.HasPrefix(key, "refused") || strings.HasPrefix(key, "broken")
}

// replayChanges goes through the changes once more, with another upstream of the same seed, and
// has someone look after each: until when in microseconds since 1970 it was like that.
func (s *site) replayChanges(ctx context.Context, changes []time.Time, look func(src *source.Source, until int64) error) error {
	upstream := simulator.New(simulator.Config{Seed: 1})
	defer upstream.Close()
	server := httptest.NewServer(upstream)
	defer server.Close()
	var config source.Config
	if err := yaml.Unmarshal([]byte(harness.Preset(server.URL, s.Facets)), &config); err != nil {
		return err
	}
	src, err := source.New("nexon", config, map[string]string{"": "a-key"}, 1)
	if err != nil {
		return err
	}
	defer src.Close()
	for _, change := range changes {
		if err := look(src, change.UnixMicro()); err != nil {
			return err
		}
		if err := upstream.Control(simulator.Control{ChangePercent: changePercent}); err != nil {
			return err
		}
	}
	return look(src, math.MaxInt64)
}

// judgeContents judges that what is stored is what the upstream had at the last check of it,
// or later, and that only that is said to be absent which the upstream has never had.
func (t *table) judgeContents(ctx context.Context, s *site, stored map[string]storedState, payloads map[string]string, changes []time.Time) error {
	left := maps.Clone(stored)
	maps.DeleteFunc(left, func(key string, now storedState) bool { return now.absent && strings.HasPrefix(key, "absent") })
	garbled := []string{}
	err := s.replayChanges(ctx, changes, func(src *source.Source, until int64) error {
		for key, now := range left {
			if neverFresh(key) || now.absent || until < now.checked {
				continue // never right, or it was another by then
			}
			hash, text, err := fetchContent(ctx, src, key)
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
		return nil
	})
	if err != nil {
		return err
	}
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(left)) {
		wrong = append(wrong, fmt.Sprintf("%s: %+v", key, left[key]))
	}
	t.judgeNone("contents that the upstream has not had since", len(stored), wrong)
	t.judgeNone("contents that are not what their hash says", len(stored), garbled)
	t.report("  of so many changes", "%d", len(changes))
	return nil
}

// judgeAnswers judges what readers got as contents does what is stored: by when it is said to
// have been checked.
func (t *table) judgeAnswers(ctx context.Context, s *site, l *tortureLoad) error {
	left := map[string][]servedAnswer{}
	for of := range l.served {
		left[of.key] = append(left[of.key], of)
	}
	err := s.replayChanges(ctx, l.changes, func(src *source.Source, until int64) error {
		for key, all := range left {
			if neverFresh(key) || !slices.ContainsFunc(all, func(of servedAnswer) bool { return of.checked <= until }) {
				continue
			}
			_, text, err := fetchContent(ctx, src, key)
			if err != nil {
				return err
			}
			sum := sha256.Sum256([]byte(text))
			left[key] = slices.DeleteFunc(all, func(of servedAnswer) bool { return of.checked <= until && of.sum == sum })
		}
		return nil
	})
	if err != nil {
		return err
	}
	wrong := []string{}
	for _, key := range slices.Sorted(maps.Keys(left)) {
		for _, of := range left[key] {
			p := l.served[of]
			wrong = append(wrong, fmt.Sprintf("%s by %s at %s, checked at %s", key, p.query, p.asked.Format(time.StampMicro), time.UnixMicro(of.checked).Format(time.StampMicro)))
		}
	}
	t.judgeNone("answers that the upstream has not had since their check", len(l.served), wrong)
	var denied []string
	for _, p := range l.notFound {
		denied = append(denied, fmt.Sprintf("%s by %s at %s", p.key, p.query, p.asked.Format(time.StampMicro)))
	}
	t.judgeNone("reads that were told that there is no such entity, and there is", int(l.reads.Load()), denied)
	return nil
}

// fetchContent returns what is made of an entity's document, and its hash.
func fetchContent(ctx context.Context, src *source.Source, key string) (hash, text string, err error) {
	plan, err := src.Plan(source.Request{Facet: facet, Key: key})
	if err != nil {
		return "", "", err
	}
	answers, err := src.Fetch(ctx, plan, harness.UnlimitedPermits)
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
func (s *site) payloads(ctx context.Context, stored map[string]storedState) (map[string]string, error) {
	db, err := postgres.Open(ctx, s.Database)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	all := map[string]string{}
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(stored)), 200) {
		var of []schemas.Entity
		for _, key := range keys {
			of = append(of, schemas.Entity{Source: s.Source, Facet: facet, Key: key})
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

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

// neverFresh reports whether the upstream never returns contents for a key.
func neverFresh(key string) bool {
	return strings.HasPrefix(key, "notfound") || strings.HasPrefix(key, "refused") || strings.HasPrefix(key, "broken")
}

// replayChanges repeats all changes of the contents in a second upstream with the same seed. It
// calls the function `visit` with that upstream before each change and after the last one. `until`
// is the time of the next change, in microseconds since 1970: the contents were valid until then.
func (s *site) replayChanges(ctx context.Context, changes []time.Time, visit func(src *source.Source, until int64) error) error {
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
		if err := visit(src, change.UnixMicro()); err != nil {
			return err
		}
		if err := upstream.Control(simulator.Control{ChangePercent: changePercent}); err != nil {
			return err
		}
	}
	return visit(src, math.MaxInt64)
}

// judgeContents judges the stored contents. The upstream must have had each stored content when
// the entity was last checked, or later. Only entities that the upstream never had may be stored
// as not found.
func (t *table) judgeContents(ctx context.Context, s *site, stored map[string]storedState, payloads map[string]string, changes []time.Time) error {
	left := maps.Clone(stored)
	maps.DeleteFunc(left, func(key string, now storedState) bool { return now.notFound && strings.HasPrefix(key, "notfound") })
	garbled := []string{}
	err := s.replayChanges(ctx, changes, func(src *source.Source, until int64) error {
		for key, now := range left {
			if neverFresh(key) || now.notFound || until < now.checked {
				continue // do not compare: the upstream has no valid contents for the key, or replaced this content before the entity was last checked
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
	t.judgeNone("contents that the upstream did not have since the check", len(stored), wrong)
	t.judgeNone("payloads that do not match their hash", len(stored), garbled)
	t.report("  changes in the upstream", "%d", len(changes))
	return nil
}

// judgeAnswers judges the contents in the responses to readers, as judgeContents judges the
// stored contents. The upstream must have had each content at the response's lastCheckedAt or
// later. No read of an existing entity may have returned 404.
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
	t.judgeNone("responses that the upstream did not have since the check", len(l.served), wrong)
	var notFound []string
	for _, p := range l.notFound {
		notFound = append(notFound, fmt.Sprintf("%s by %s at %s", p.key, p.query, p.asked.Format(time.StampMicro)))
	}
	t.judgeNone("reads of existing entities answered with 404", int(l.reads.Load()), notFound)
	return nil
}

// fetchContent fetches an entity and returns its extracted content and the content's hash.
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
	return hex.EncodeToString(outcome.Content.Hash[:]), string(outcome.Content.Bytes), nil
}

// payloads returns the decoded payload of each stored entity.
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

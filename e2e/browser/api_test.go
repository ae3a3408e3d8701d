package browser

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
)

const character = "/v1/nexon/character/somebody"

// openFresh starts `freshet dev` with --no-demo and waits until the entity "somebody" is fresh. It
// returns a tab on a page of the same origin, so that scripts in this page can call the API.
func openFresh(t *testing.T) (*tab, dev) {
	t.Helper()
	b := newTab(t)
	d := startDev(t, "--no-demo")
	until(t, "a fresh character", func() bool { return d.read("somebody") == http.StatusOK })
	b.open(d.url + "/livez")
	return b, d
}

// compact returns JSON without spaces.
func compact(t *testing.T, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return out.String()
}

func TestQueryAPI_ServesStoredFrameToBrowser(t *testing.T) {
	b, d := openFresh(t)
	got := evaluate[struct {
		Status   int
		Encoding string
		Body     string
	}](b, `(async () => {
		const r = await fetch('`+character+`')
		return {Status: r.status, Encoding: r.headers.get('Content-Encoding'), Body: await r.text()}
	})()`)
	if got.Status != http.StatusOK {
		t.Errorf("status: got %d, want 200", got.Status)
	}
	if got.Encoding != "zstd" {
		t.Errorf("Content-Encoding: got %q, want zstd", got.Encoding)
	}
	type envelope struct {
		Freshness string
		Snapshot  json.RawMessage
	}
	var read, want envelope
	if err := json.Unmarshal([]byte(got.Body), &read); err != nil {
		t.Fatal(err)
	}
	_, text := request(t, http.MethodGet, d.url+character)
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if read.Freshness != "FRESH" {
		t.Errorf("freshness: got %s, want FRESH", read.Freshness)
	}
	snapshot := compact(t, read.Snapshot)
	if len(snapshot) < 200_000 {
		t.Errorf("snapshot: got %d bytes, want at least 200000", len(snapshot))
	}
	if snapshot != compact(t, want.Snapshot) {
		t.Errorf("snapshot: got other content in the browser than without one: %.200s", snapshot)
	}
}

func TestQueryAPI_AnswersBrowserRevalidation(t *testing.T) {
	b, _ := openFresh(t)
	got := evaluate[int](b, `(async () => {
		const r = await fetch('`+character+`')
		await r.text()
		return (await fetch('`+character+`', {headers: {'If-None-Match': r.headers.get('ETag')}, cache: 'no-store'})).status
	})()`)
	if got != http.StatusNotModified {
		t.Errorf("got %d, want 304", got)
	}
}

func TestQueryAPI_StreamsEventsToBrowser(t *testing.T) {
	b, _ := openFresh(t)
	events := evaluate[[]struct{ Name, ID, ETag string }](b, `new Promise((resolve, reject) => {
		const seen = []
		const stream = new EventSource('`+character+`/events')
		for (const name of ['changed', 'checked'])
			stream.addEventListener(name, e => {
				seen.push({Name: name, ID: e.lastEventId, ETag: JSON.parse(e.data).etag})
				if (seen.length === 1) fetch('`+character+`/refresh?wait=20s', {method: 'POST'}).then(r => r.status === 200 || reject('refresh: ' + r.status))
				if (seen.length === 2) { stream.close(); resolve(seen) }
			})
	})`)
	first, second := events[0], events[1]
	if first.Name != "changed" {
		t.Errorf("first event: got %q, want changed", first.Name)
	}
	if second.Name != "checked" {
		t.Errorf("event after a refresh without changes: got %q, want checked", second.Name)
	}
	if first.ETag != second.ETag {
		t.Errorf("ETag after a refresh without changes: got %s, want %s", second.ETag, first.ETag)
	}
	if first.ID >= second.ID {
		t.Errorf("event ids: got %s and then %s, want them to rise", first.ID, second.ID)
	}
}

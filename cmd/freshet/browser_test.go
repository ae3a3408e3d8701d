package main

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/freshet/freshet/servicetest"
)

// browser starts a headless Chromium on a page of the address.
func browser(t *testing.T, address string) context.Context {
	t.Helper()
	program := servicetest.Program(t, "chromium", "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if _, err := chromedp.Run(ctx, chromedp.Navigate(address)); err != nil {
		t.Fatalf("open %s: %v", address, err)
	}
	return ctx
}

// script runs what a page would, and returns what its promise brings.
func script[T any](ctx context.Context, t *testing.T, text string) T {
	t.Helper()
	brought, err := chromedp.Run(ctx, chromedp.Evaluate[T](text, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return brought
}

// fetched and followed are what the page's scripts tell.
type (
	fetched struct {
		Status, Again int
		Encoding      string
		Body          struct {
			Freshness string
			Snapshot  json.RawMessage
		}
	}
	followed []struct {
		Name, ID string
		Data     struct{ Freshness, ETag string }
	}
)

func TestABrowserReadsTheStoredFrameAndFollowsTheStream(t *testing.T) {
	d := startDev(t, "--no-demo")
	want := d.until("a fresh answer", "somebody", isFresh)
	ctx := browser(t, d.api+"/livez")
	got := script[fetched](ctx, t, `(async () => {
		const url = '/v1/nexon/character/somebody', r = await fetch(url)
		const body = await r.json()
		const again = await fetch(url, {headers: {'If-None-Match': r.headers.get('ETag')}, cache: 'no-store'})
		return {Status: r.status, Encoding: r.headers.get('Content-Encoding'), Body: {Freshness: body.freshness, Snapshot: body.snapshot}, Again: again.status}
	})()`)
	var here, there any
	if json.Unmarshal(got.Body.Snapshot, &there) != nil || json.Unmarshal(want.body.Snapshot, &here) != nil {
		t.Fatal("no JSON")
	}
	one, _ := json.Marshal(here)
	other, _ := json.Marshal(there)
	if got.Status != 200 || got.Encoding != "zstd" || got.Body.Freshness != "FRESH" || got.Again != 304 || len(one) < 200_000 || string(one) != string(other) {
		t.Errorf("the browser got %d, %s, %s, %d bytes of %d, and then %d", got.Status, got.Encoding, got.Body.Freshness, len(other), len(one), got.Again)
	}

	events := script[followed](ctx, t, `new Promise((resolve, reject) => {
		const url = '/v1/nexon/character/somebody', seen = []
		const stream = new EventSource(url + '/events')
		for (const name of ['changed', 'checked'])
			stream.addEventListener(name, e => {
				const data = JSON.parse(e.data)
				seen.push({Name: name, ID: e.lastEventId, Data: {Freshness: data.freshness, ETag: data.etag}})
				if (seen.length === 1) fetch(url + '/refresh?wait=20s', {method: 'POST'}).then(r => r.status === 200 || reject('refresh: ' + r.status))
				if (seen.length === 2) { stream.close(); resolve(seen) }
			})
	})`)
	if len(events) != 2 || events[0].Name != "changed" || events[1].Name != "checked" || events[0].Data.ETag != events[1].Data.ETag || events[0].ID >= events[1].ID {
		t.Errorf("the browser heard %+v", events)
	}
}

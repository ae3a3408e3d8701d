package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/freshet/freshet/entities"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/servicetest"
)

// prefetching writes a configuration with two facets, one of which is prefetched.
func prefetching(t *testing.T) string {
	return write(t, `sources:
  mirror:
    baseURL: http://mirror.example
    quota: {policies: [{name: second, limit: 500, window: 1s}]}
    facets:
      f: {keyPattern: "[^?]{1,80}", params: {p: ""}, documents: {d: {path: "/f/{key}"}}}
      quiet: {documents: {d: {path: "/quiet/{key}"}}}
    prefetch: {facets: {f: {mode: tiers}}}
`)
}

func TestEntities_ImportListDisableEnable(t *testing.T) {
	d := startDev(t, "--simulate", "--config", prefetching(t))
	const n = 1200 // number of entities, small enough for SQLite on a slow machine
	var files []string
	for from := 0; from < n; from += n / 4 {
		rows := "key,tier,p\n"
		for i := from; i < from+n/4; i++ {
			rows += fmt.Sprintf("k/%04d,%s,%d\n", i, []string{"hot", "warm", ""}[i%3], i%2)
		}
		files = append(files, write(t, rows))
	}
	file := files[0]
	d.mustRun(2, []string{"--facet"}, "entities", "import", file)
	d.mustRun(3, []string{"no facet \"g\"; it has f, quiet.\n"}, "entities", "import", "--facet", "g", file)
	d.mustRun(3, []string{`no source "nexon"`}, "entities", "import", "--source", "nexon", "--facet", "f", file)
	d.mustRun(1, []string{"sources.mirror.prefetch.facets.quiet.mode to tiers or adaptive, in every role's configuration.\n"}, "entities", "import", "--facet", "quiet", file)
	d.mustRun(1, []string{"line 2: the facet has no param teir; it has p"}, "entities", "import", "--facet", "f", write(t, "key,teir\na,hot\n"))
	for _, file := range files {
		d.mustRun(0, []string{"300 rows, 300 added, 0 known\n"}, "entities", "import", "--facet", "f", file)
	}
	d.mustRun(0, []string{"100 rows, 0 added, 100 known\n"}, "entities", "import", "--facet", "f", "--skip", "200", file)

	table := strings.Join(strings.Fields(d.mustRun(0, nil, "entities", "list", "--facet", "f", "--prefix", "k/0001")), " ")
	for _, want := range []string{"SOURCE FACET KEY TIER PINNED ENABLED DUE READS LAST READ CHANGES PARAMS", "mirror f k/0001 warm true true 20", ` 0.0 never 0.0 {"p":"1"}`} {
		if !strings.Contains(table, want) {
			t.Errorf("got %[2]s, want %[1]q in it", want, table)
		}
	}
	d.mustRun(0, []string{"1200\n"}, "entities", "list", "--count")
	d.mustRun(0, []string{`{"count":400,"exact":true}`}, "entities", "list", "--count", "--tier", "hot", "-o", "json")
	for _, format := range []string{"json", "jsonl"} {
		text := d.mustRun(0, nil, "entities", "list", "--limit", "0", "-o", format)
		if format == "jsonl" {
			text = "[" + strings.ReplaceAll(strings.TrimSpace(text), "\n", ",") + "]"
		}
		var all []entities.Entity
		if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != n || all[n-1].Key != "k/1199" {
			t.Errorf("got %d entities in %s, %v; want %d, the last k/1199", len(all), format, err, n)
		}
	}
	d.mustRun(2, []string{"--tier is required: hot, warm or cold"}, "entities", "pin", "--facet", "f", "k/0000")
	d.mustRun(2, []string{"--facet is required"}, "entities", "unpin", "k/0000")
	d.mustRun(0, []string{"2 unpinned\n"}, "entities", "unpin", "--facet", "f", "k/0000", "k/0001")
	d.mustRun(0, []string{"1 pinned\n"}, "entities", "pin", "--facet", "f", "--tier", "hot", "k/0000")
	if text := d.mustRun(0, nil, "entities", "list", "--prefix", "none", "-o", "json"); text != "[]\n" {
		t.Errorf("empty list: got %q, want %q", text, "[]\n")
	}
	code, out, errs := command(t, []string{"FRESHET_ADDR=" + d.api}, "entities", "list", "--limit", "1100")
	if code != 0 || strings.Count(out, "\n") != 1101 || !strings.Contains(errs, "1100 entities shown, there may be more") {
		t.Errorf("list: got exit %d, %d lines, %q; want 0, 1101, a text that contains %q",
			code, strings.Count(out, "\n"), errs, "1100 entities shown, there may be more")
	}

	d.mustRun(2, []string{"--yes"}, "entities", "disable", "--facet", "f", "--tier", "hot")
	d.mustRun(0, []string{"400 disabled\n"}, "entities", "disable", "--facet", "f", "--tier", "hot", "--yes")
	for _, c := range []struct {
		verb      string
		keys      []string
		out, errs string
	}{
		{"enable", []string{"k/0000", "k/0003", "k/0001", "k/0003", "nobody"}, "2 enabled\n", "2 of 4 enabled; the others already were, or are not registered\n"},
		{"enable", []string{"nobody"}, "0 enabled\n", "0 of 1 enabled; the others already were, or are not registered\n"},
		{"disable", []string{"k/0000"}, "1 disabled\n", ""},
	} {
		code, out, errs := command(t, []string{"FRESHET_ADDR=" + d.api}, append([]string{"entities", c.verb, "--facet", "f", "--yes"}, c.keys...)...)
		if code != 0 || out != c.out || errs != c.errs {
			t.Errorf("%s %q: got exit %d, stdout %q, stderr %q; want 0, %q, %q", c.verb, c.keys, code, out, errs, c.out, c.errs)
		}
	}
	d.mustRun(0, []string{"1 enabled\n"}, "entities", "enable", "--facet", "f", "--yes", "--prefix", "k/0000")
	d.mustRun(0, []string{"398\n"}, "entities", "list", "--enabled", "false", "--count")
	d.mustRun(0, []string{"entities-disable", `{"enabled":false,"source":"mirror","facet":"f","tier":"hot","entities":400}`, `"keys":["k/0000","k/0001","k/0003","nobody"]`}, "settings", "audit")
	d.mustRun(2, []string{"pass keys, --prefix or --tier, or --all for every entity of mirror/f\n"}, "entities", "disable", "--yes", "--facet", "f")
	d.mustRun(2, []string{"or --all for every entity of mirror\n"}, "entities", "enable", "--yes", "--prefix", "")
	d.mustRun(2, []string{"--all excludes"}, "entities", "disable", "--yes", "--all", "--tier", "hot")
	d.mustRun(2, []string{"--all excludes"}, "entities", "disable", "--yes", "--all", "--facet", "f", "k/0000")
	d.mustRun(0, []string{"398\n"}, "entities", "list", "--enabled", "false", "--count")
	d.mustRun(0, []string{"398 enabled\n"}, "entities", "enable", "--yes", "--all")
	d.mustRun(2, []string{"keys need --facet"}, "entities", "disable", "--yes", "k")
	d.mustRun(2, []string{"exclude --tier"}, "entities", "disable", "--yes", "--facet", "f", "--tier", "hot", "k")
	d.mustRun(2, []string{"hot, warm or cold"}, "entities", "disable", "--yes", "--tier", "lukewarm")
	d.mustRun(2, []string{"true or false"}, "entities", "list", "--enabled", "yes")
	d.mustRun(2, []string{"0 for no limit"}, "entities", "list", "--limit", "-1")
	d.mustRun(2, []string{"table, json or jsonl"}, "entities", "list", "-o", "xml")
}

func TestSnapshot_GetRefreshDelete(t *testing.T) {
	d := startDev(t, "--no-demo")
	const name = "nexon/character/somebody"
	d.mustRun(2, []string{"must be source/facet/key"}, "snapshot", "get", "nexon/character")
	d.mustRun(2, []string{"the key is empty"}, "snapshot", "get", "nexon/character/")
	d.mustRun(3, []string{"There is no such source"}, "snapshot", "get", "github/character/somebody")
	d.mustRun(3, []string{"no such facet"}, "snapshot", "get", "nexon/guild/somebody")
	d.mustRun(1, []string{"does not match the keyPattern"}, "snapshot", "get", "nexon/character-by-ocid/some body/x")
	d.mustRun(4, []string{"no snapshot of " + name + " is stored yet (UPDATING", "--wait 10s"}, "snapshot", "get", name)
	d.until("a fresh answer", "somebody", isFresh)
	code, out, errs := command(t, []string{"FRESHET_ADDR=" + d.api}, "snapshot", "get", name)
	if code != 0 || !json.Valid([]byte(out)) || !strings.HasPrefix(out, "{") || !strings.HasPrefix(errs, "FRESH, checked 20") {
		t.Errorf("snapshot: got exit %d, stdout %.80q, stderr %q; want 0, a JSON object, a text that begins with %q",
			code, out, errs, "FRESH, checked 20")
	}
	d.mustRun(0, []string{"nexon/character/other: FRESH, checked 20"}, "snapshot", "refresh", "nexon/character/other", "--wait", "20s")
	d.mustRun(0, []string{"nexon/character/third: a refresh is queued"}, "snapshot", "refresh", "nexon/character/third")
	d.mustRun(2, []string{"between 0s and 30s"}, "snapshot", "refresh", name, "--wait", "1h")
	d.mustRun(2, []string{"--yes"}, "snapshot", "delete", name)
	d.mustRun(0, []string{name + " is deleted\n"}, "snapshot", "delete", name, "--yes")
	d.mustRun(3, []string{"Nothing is stored of " + name}, "snapshot", "delete", name, "--yes")
	d.mustRun(3, []string{"Nothing is stored of nexon/character/a/b?c"}, "snapshot", "delete", "nexon/character/a/b?c", "--yes")
	d.mustRun(0, []string{"snapshot-delete", `{"facet":"character","key":"somebody"}`}, "settings", "audit")
}

// After a snapshot is deleted, the query service must not serve it from its cache any more.
func TestSnapshotDelete_StopsServing(t *testing.T) {
	d := startDev(t, "--no-demo")
	d.until("a fresh answer", "somebody", isFresh)
	d.mustRun(0, nil, "stop", "--yes", "--source", "nexon") // the source is stopped, so that no refresh stores the snapshot again
	servicetest.WaitFor(t, eventTimeout, "the stop in force", func() bool { return d.view().State == limiter.StateStopped })
	d.mustRun(0, nil, "snapshot", "delete", "nexon/character/somebody", "--yes")
	d.until("an answer that nothing is stored", "somebody", func(r read) bool { return r.status == http.StatusAccepted })
}

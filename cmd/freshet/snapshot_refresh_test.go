package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The command must print the result of each entity, and exit with code 4 if some refreshes are not
// queued. The file has more keys than one request allows. One key is invalid, and another key was
// refreshed recently.
func TestSnapshotRefresh_ReportsEachEntityOfAFile(t *testing.T) {
	d := startDev(t, "--no-demo", "--simulate", "--config", smallDocument(t))
	const name = "nexon/character/"
	d.mustRun(0, []string{name + "cooling: FRESH"}, "snapshot", "refresh", name+"cooling", "--wait", "20s")
	var lines []string
	for _, key := range characters("many", 2*maxRefreshKeys) {
		lines = append(lines, name+key)
	}
	lines = append(lines, "", "  "+name+"spaced  ", name+"bad key", name+"cooling", name+"many0")
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := command(t, []string{"FRESHET_ADDR=" + d.api}, "snapshot", "refresh", name+"named", "--file", file)
	if code != 4 || !strings.Contains(errs, "2 of 204 refreshes are not queued") {
		t.Errorf("got exit %d, %q, want 4 and 2 of 204 not queued", code, errs)
	}
	if n := strings.Count(out, ": a refresh is queued\n"); n != 202 {
		t.Errorf("queued: got %d, want 202", n)
	}
	for _, want := range []string{
		name + "named: a refresh is queued\n", name + "spaced: a refresh is queued\n",
		name + "bad key: no refresh is queued: BAD_KEY: ", name + "cooling: no refresh is queued: COOLDOWN, until ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output: got %s, want %q in it", out, want)
		}
	}
	d.until("a fresh answer", "many199", isFresh)
	d.mustRun(3, []string{"no such facet", "0 of 2 refreshes are queued already"}, "snapshot", "refresh", "nexon/guild/a", "nexon/guild/b")
	d.mustRun(2, []string{"--wait needs exactly one entity"}, "snapshot", "refresh", name+"a", name+"b", "--wait", "1s")
	d.mustRun(2, []string{"pass an entity"}, "snapshot", "refresh")
	d.mustRun(1, []string{"no such file"}, "snapshot", "refresh", "--file", file+"-missing")
}

func TestEntitiesNamed_ReadsStdinAndKeepsEachOnce(t *testing.T) {
	all, err := readEntityNames([]string{"s/f/b"}, "-", strings.NewReader("s/f/a\n\ns/g/a/b\ns/f/b\n"))
	var got []string
	for _, e := range all {
		got = append(got, e.String())
	}
	if want := []string{"s/f/b", "s/f/a", "s/g/a/b"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := readEntityNames(nil, "-", strings.NewReader("s/f/a\nf/b\n")); err == nil || !strings.Contains(err.Error(), `"f/b" must be source/facet/key`) {
		t.Errorf("a line that names no entity: got %v, want an error with the line", err)
	}
}

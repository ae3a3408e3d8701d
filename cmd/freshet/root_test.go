package main

import (
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"
)

func TestVersion_IsPrinted(t *testing.T) {
	if code, stdout, _ := command(t, nil, "version"); code != 0 || !strings.HasPrefix(stdout, "freshet v") {
		t.Errorf("version: got exit %d, output %s; want 0, a text that begins with %q", code, stdout, "freshet v")
	}
}

func TestVersion_FlagPrintsSameText(t *testing.T) {
	_, want, _ := command(t, nil, "version")
	if code, stdout, stderr := command(t, nil, "--version"); code != 0 || stdout != want {
		t.Errorf("--version: got exit %d, output %q, stderr %q; want 0, %q", code, stdout, stderr, want)
	}
}

func TestVersion_JSONHasBuild(t *testing.T) {
	code, stdout, _ := command(t, nil, "version", "-o", "json")
	var got map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("got exit %d, output %q, %v; want 0, a JSON object", code, stdout, err)
	}
	if want := runtime.Version(); got["go"] != want {
		t.Errorf("go: got %v, want %s", got["go"], want)
	}
	for _, name := range []string{"version", "commit", "date", "modified"} {
		if _, there := got[name]; !there {
			t.Errorf("%s: got none in %s, want it", name, stdout)
		}
	}
}

func TestVersion_RejectsUnknownFormat(t *testing.T) {
	if code, _, stderr := command(t, nil, "version", "-o", "yaml"); code != 2 || !strings.Contains(stderr, "text or json") {
		t.Errorf("got exit %d, stderr %q; want 2, the valid formats", code, stderr)
	}
}

func TestCompletion_PrintsScriptOfEachShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := command(t, nil, "completion", shell); code != 0 || !strings.Contains(stdout, "freshet") || stderr != "" {
			t.Errorf("%s: got exit %d, %d bytes, stderr %q; want 0, a script, none", shell, code, len(stdout), stderr)
		}
	}
}

func TestHelp_EachCommandIsInAGroup(t *testing.T) {
	root := newRoot(nil, io.Discard, io.Discard)
	for _, c := range root.Commands() {
		if c.GroupID == "" && !c.Hidden {
			t.Errorf("%s: got no group, want one", c.Name())
		}
	}
}

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/freshet/freshet/retention"
)

func TestMaintain_ShowsAndRuns(t *testing.T) {
	t.Parallel()
	token, secret := strings.Repeat("0123456789abcdef", 4), strings.Repeat("c1", 16)
	d := startDev(t, "--no-demo", "--config", write(t, "access: {adminTokenFile: "+write(t, token+"\n")+", cronSecretFile: "+write(t, secret+"\n")+"}\nretention: {audit: 9000h, dlqJobs: 0s}\n"))
	_, stdout, stderr := d.as(token, "maintain", "run")
	for _, table := range retention.Tables {
		if strings.Count(stdout, "\n"+table.Name+" ") != 1 {
			t.Errorf("run: got %s%s, want a line of the table %s", stdout, stderr, table.Name)
		}
	}
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := d.as(token, args...)
		if text := strings.Join(strings.Fields(stdout+stderr), " "); got != code || !strings.Contains(text, want) {
			t.Errorf("%q: got exit %d, %q, want %d and %q", args, got, text, code, want)
		}
	}
	run(0, "TABLE KEEP OLDEST ROW LAST RUN DELETED NEXT RUN audit 375d 20", "maintain", "status")
	run(0, "dlqJobs without limit none never 0 never", "maintain", "status")
	run(0, `"requested": true`, "maintain", "run", "--wait", "0s", "-o", "json")
	run(0, "maintenance-run", "settings", "audit")

	for header, want := range map[string]int{secret: http.StatusAccepted, secret + "x": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.api+"/admin/v1/maintenance/run", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Cron-Secret", header)
		resp, err := d.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("run with a secret of %d characters: got %d, want %d", len(header), resp.StatusCode, want)
		}
	}
	run(0, "cron maintenance-run", "settings", "audit")
}

// Without a scheduler no run ends. So the command must end after the time of the flag --wait, with exit
// code 4.
func TestMaintain_ReportsARunThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
		}
		fmt.Fprint(w, `{"tables":[{"table":"audit","keepSeconds":3600,"requested":true,"nextAt":null},{"table":"dlqJobs","keepSeconds":0,"requested":false}]}`)
	}))
	defer server.Close()
	code, stdout, stderr := command(t, []string{"FRESHET_ADDR=" + server.URL}, "maintain", "run", "--wait", "1ms")
	if want := "the run has not ended after 1ms for: audit;"; code != 4 || !strings.Contains(stderr, want) || !strings.Contains(strings.Join(strings.Fields(stdout), " "), "audit 1h0m0s none never 0 now") {
		t.Errorf("got exit %d, %s%s, want 4, %q, and the state", code, stderr, stdout, want)
	}
}

package console

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/status"
)

func TestStatus_ShowsStoppedCredential(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	ends, since := now.Add(-5*time.Minute), now.Add(-time.Hour)
	all := []status.Credential{
		{Source: "a", Credential: "app", State: status.CredentialStopped, EndsAt: &ends, Since: &since, Error: "the token endpoint answered 400"},
		{Source: "a", Credential: "fine", State: status.CredentialActive, EndsAt: &now},
		{Source: "b", Credential: "other", State: status.CredentialFailing, Since: &since},
	}
	rows := credentialRows(all, "a", now)
	if len(rows) != 2 || rows[0][1].Tone != toneBad || rows[1][1].Tone != toneOK || !strings.Contains(rows[0][4].Text, "answered 400") {
		t.Errorf("rows: got %+v", rows)
	}
	c := &Console{Deps: Deps{Sources: []string{"a", "b"}}}
	s := c.statusOf(&sample{At: now, Sources: map[string]*sourceSample{"a": {}, "b": {}}, Credentials: all}, []string{"a", "b"})
	var text strings.Builder
	for _, row := range s.Rows["problems"] {
		text.WriteString(row[0].Text + "\n")
	}
	for _, want := range []string{"a: the credential app has stopped since 1 h; an operator has to renew or authorize it.", "b: renewals of the credential other fail since 1 h."} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("problems: got %q, want %q", text.String(), want)
		}
	}
}

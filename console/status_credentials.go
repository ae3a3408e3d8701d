package console

import (
	"time"

	"github.com/freshet/freshet/status"
)

var credentialColumns = []column{textColumn("Credential"), textColumn("State"), textColumn("Token ends"), textColumn("Since"), textColumn("Error")}

// credentialRows returns a table row for each credential of the source that renews itself.
func credentialRows(all []status.Credential, source string, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	for _, c := range all {
		if c.Source != source {
			continue
		}
		ends, since := "no token", ""
		switch {
		case c.EndsAt != nil && c.EndsAt.After(now):
			ends = "in " + formatDuration(c.EndsAt.Sub(now))
		case c.EndsAt != nil:
			ends = formatDuration(now.Sub(*c.EndsAt)) + " ago"
		}
		if c.Since != nil {
			since = formatDuration(now.Sub(*c.Since)) + " ago"
		}
		rows = append(rows, []statusItem{
			{Text: c.Credential}, {Text: c.State, Tone: credentialTone(c)}, {Text: ends}, {Text: since}, {Text: displayText(c.Error, maxErrorShown)},
		})
	}
	return rows
}

func credentialTone(c status.Credential) string {
	switch c.State {
	case status.CredentialActive:
		return toneOK
	case status.CredentialStopped:
		return toneBad
	}
	return toneWarn
}

// addCredentials adds the credentials that fail or have stopped.
func (p *problems) addCredentials(all []status.Credential, now time.Time) {
	for _, c := range all {
		since := ""
		if c.Since != nil {
			since = " since " + formatDuration(now.Sub(*c.Since))
		}
		switch c.State {
		case status.CredentialStopped:
			p.add(toneBad, sourcePage("limiter", c.Source, "FreshetCredentialNeedsConsent"),
				"%s: the credential %s has stopped%s; an operator has to renew or authorize it.", c.Source, c.Credential, since)
		case status.CredentialFailing:
			p.add(toneWarn, sourcePage("limiter", c.Source, "FreshetCredentialRenewalFails"),
				"%s: renewals of the credential %s fail%s.", c.Source, c.Credential, since)
		}
	}
}

package consumer

// These tests count the dead letters for the same failures twice: by the rules of adr-013 (§5 and
// §10) and as freshet writes them. By those rules, every 4xx, every unreadable response, and every
// 5xx after three tries becomes a dead letter.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/source"
)

// countDeadLettersByADR returns how many dead letters the rules of adr-013 cause for a number of
// records (the parameter `records`), if all calls have the outcome o.
func countDeadLettersByADR(o source.Outcome, records int) (deadLetters int) {
	for range records {
		if o.Status >= 400 || o.Class == source.BadContent { // a 5xx counts too: by adr-013 it becomes a dead letter after three tries
			deadLetters++
		}
	}
	return deadLetters
}

// countDeadLetters processes records, each of another entity, for at most an hour of fake time. The
// parameter `records` is the number of `records`. All calls have outcome o, and there is no known-good
// entity. It returns how many dead letters freshet writes and how many calls it makes.
func countDeadLetters(t *testing.T, o source.Outcome, records int) (deadLetters, calls int) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		h, end := NewHealth(), time.Now().Add(time.Hour)
		for i := 0; i < records && time.Now().Before(end); i++ {
			did, first := attemptHistory{}, time.Now()
			for time.Now().Before(end) {
				calls++
				did.calls++
				what := h.record(callEnd{entity: of("a", i), first: first, began: time.Now()}, evidenceOf(o), false, breakerOpen(h.unhealthy))
				d := decide(o, did, what, noKnownGood)
				if d.next == stepStore || d.next == stepScheduleRetry {
					break
				}
				if d.next == stepDeadLetter && !d.needsConfirmation {
					deadLetters++
					break
				}
				did.unconfirmed = d.needsConfirmation
				if d.countsFailure {
					did.failures++
				}
				<-time.After(max(d.wait, d.pause, time.Second))
			}
		}
	})
	return deadLetters, calls
}

func compareDeadLetters(t *testing.T, o source.Outcome, records, most int) {
	t.Helper()
	deadLetters, calls := countDeadLetters(t, o, records)
	theirs := countDeadLettersByADR(o, records)
	t.Logf("%d records: %d dead letters by the ADR, %d by freshet in %d calls", records, theirs, deadLetters, calls)
	if theirs != records {
		t.Errorf("dead letters of the ADR: got %d, want %d", theirs, records)
	}
	if deadLetters > most {
		t.Errorf("dead letters: got %d, want at most %d", deadLetters, most)
	}
}

func TestADR_DeadLettersEachUnknownKey(t *testing.T) {
	compareDeadLetters(t, source.Outcome{Class: source.NotFound, Status: 404}, 3000, 0)
}

func TestADR_DeadLettersAllWhenCredentialExpires(t *testing.T) {
	compareDeadLetters(t, source.Outcome{Class: source.AuthRefused, Block: source.BlockCredential, Status: 400}, 3000, 0)
}

func TestADR_DeadLettersAllInAnHourOf500s(t *testing.T) {
	compareDeadLetters(t, source.Outcome{Class: source.Transient, Status: 500}, 3000, 0)
}

func TestADR_DeadLettersAllInAnHourOfHTML(t *testing.T) {
	compareDeadLetters(t, source.Outcome{Class: source.BadContent, Status: 200}, 3000, 0)
}

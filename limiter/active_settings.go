package limiter

import "time"

// activeSettings are the settings that the next call to Redis sends.
type activeSettings struct {
	quota   Quota
	terms   terms
	renewed time.Time // time of the last computation of terms.midnights
	stopped bool
	unread  bool // true if the settings were not read yet, so no permit is granted
}

// set replaces the quota and the emergency stop.
func (s *activeSettings) set(q Quota, revision int64, stopped bool) {
	s.quota, s.stopped = q, stopped
	s.terms = terms{text: q.encode(revision, stopped), scopedFrom: len(q.named()) - len(q.scoped)}
	s.renewClockTerms(time.Now())
}

// clockTermsInterval is how often terms.midnights is computed again.
const clockTermsInterval = 10 * time.Second

// renewClockTerms computes terms.midnights: the midnights before and after the time `now`.
func (s *activeSettings) renewClockTerms(now time.Time) {
	s.renewed = now
	s.terms.midnights = s.quota.midnights(now)
}

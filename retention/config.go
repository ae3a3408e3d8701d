package retention

import (
	"errors"
	"fmt"
	"time"
)

// Config has the retention periods of the rows that no facet owns. A row is deleted after its
// period. 0: the rows are kept without limit.
type Config struct {
	// Audit is how long entries of the audit are kept.
	Audit time.Duration `yaml:"audit"`
	// DeadLetters is how long the index keeps a dead letter after it was replayed or purged.
	DeadLetters time.Duration `yaml:"deadLetters"`
	// OpenDeadLetters is how long the index keeps a dead letter that nobody has replayed or purged. Its
	// record leaves the topic after 7 days, and then it cannot be replayed.
	OpenDeadLetters time.Duration `yaml:"openDeadLetters"`
	// DLQJobs is how long a replay or purge job is kept after its end, or after it was stopped.
	DLQJobs time.Duration `yaml:"dlqJobs"`
	// APIKeys is how long an API key is kept after it was revoked or has expired.
	APIKeys time.Duration `yaml:"apiKeys"`
	// CreditHolds is how long a hold of credits is kept after its end.
	CreditHolds time.Duration `yaml:"creditHolds"`
	// CreditGrants is how long a grant of credits without remaining credits is kept after its creation.
	CreditGrants time.Duration `yaml:"creditGrants"`
	// CreditEntries is how long entries of the ledger of credits are kept. Older entries of a client
	// become one entry with their sum, so that the ledger still matches the balance.
	CreditEntries time.Duration `yaml:"creditEntries"`
	// CreditUse is how long the used credits of each client and hour are kept.
	CreditUse time.Duration `yaml:"creditUse"`
}

const (
	quarter = 90 * 24 * time.Hour
	// moreThanAYear is longer than the 12 months for which rules such as PCI DSS 10.5 require an audit.
	moreThanAYear = 400 * 24 * time.Hour
	// MinKeep is the minimum retention period of a table. A dead letter may lose its row in the index only
	// after its record has left the topic (7 days), and the console shows the used credits of 7 days.
	MinKeep = 8 * 24 * time.Hour
)

// DefaultConfig returns the default retention periods.
func DefaultConfig() Config {
	return Config{
		Audit: moreThanAYear, DeadLetters: quarter, OpenDeadLetters: moreThanAYear, DLQJobs: quarter, APIKeys: moreThanAYear,
		CreditHolds: quarter, CreditGrants: moreThanAYear, CreditEntries: moreThanAYear, CreditUse: moreThanAYear,
	}
}

// Check returns all errors of the settings. Each error begins with the name of the wrong setting,
// relative to "retention".
func (c Config) Check() error {
	var errs []error
	for _, t := range Tables {
		if keep := t.Keep(c); keep != 0 && keep < MinKeep {
			errs = append(errs, fmt.Errorf("%s: %v must be 0s (without limit) or at least %v", t.Name, keep, MinKeep))
		}
	}
	return errors.Join(errs...)
}

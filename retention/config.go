package retention

import (
	"errors"
	"fmt"
	"time"
)

// Config has the retention periods of tables whose rows belong to no facet. A row is deleted after the
// period of its table. 0 means that rows are kept without limit.
type Config struct {
	// Audit is how long entries of the audit are kept.
	Audit time.Duration `yaml:"audit"`
	// DeadLetters is how long the row of a dead letter is kept after the dead letter was replayed or
	// purged.
	DeadLetters time.Duration `yaml:"deadLetters"`
	// OpenDeadLetters is how long the row of a dead letter is kept that nobody has replayed or purged.
	// The dead letter can be replayed only for 7 days, because Kafka then deletes its record.
	OpenDeadLetters time.Duration `yaml:"openDeadLetters"`
	// DLQJobs is how long a DLQ job is kept after it has ended or was stopped.
	DLQJobs time.Duration `yaml:"dlqJobs"`
	// APIKeys is how long an API key is kept after it was revoked or has expired.
	APIKeys time.Duration `yaml:"apiKeys"`
	// CreditHolds is how long a hold of credits is kept after its end.
	CreditHolds time.Duration `yaml:"creditHolds"`
	// CreditGrants is how long a grant of credits is kept after its creation. A grant with remaining
	// credits is kept without limit.
	CreditGrants time.Duration `yaml:"creditGrants"`
	// CreditEntries is how long entries of the ledger of credits are kept. Older entries of a client
	// are replaced by one entry with their sum. So the sum of the ledger still equals the client's
	// balance.
	CreditEntries time.Duration `yaml:"creditEntries"`
	// CreditUse is how long the numbers of used credits per client and hour are kept.
	CreditUse time.Duration `yaml:"creditUse"`
	// Runs is how long a run and its steps are kept after its end.
	Runs time.Duration `yaml:"runs"`
}

const (
	quarter = 90 * 24 * time.Hour
	// moreThanAYear is longer than the 12 months for which rules such as PCI DSS 10.5 require an audit.
	moreThanAYear = 400 * 24 * time.Hour
	// MinKeep is the minimum retention period of a table. It has two reasons. The row of a dead letter
	// must be kept until Kafka has deleted the record (7 days). The console shows the credits that were
	// used in the last 7 days.
	MinKeep = 8 * 24 * time.Hour
)

// DefaultConfig returns the default retention periods.
func DefaultConfig() Config {
	return Config{
		Audit: moreThanAYear, DeadLetters: quarter, OpenDeadLetters: moreThanAYear, DLQJobs: quarter, APIKeys: moreThanAYear,
		CreditHolds: quarter, CreditGrants: moreThanAYear, CreditEntries: moreThanAYear, CreditUse: moreThanAYear,
		Runs: quarter,
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

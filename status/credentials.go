package status

import "time"

// Credential is the state of a credential that renews itself. It has no secret.
type Credential struct {
	Source     string     `json:"source"`
	Credential string     `json:"credential"`
	Grant      string     `json:"grant"`
	State      string     `json:"state"` // one of the Credential constants
	Generation int64      `json:"generation"`
	EndsAt     *time.Time `json:"endsAt"` // nil: there is no token
	RenewAt    *time.Time `json:"renewAt"`
	KeyID      string     `json:"keyId"`
	Failures   int        `json:"failures"` // failed renewals since the last token
	Since      *time.Time `json:"since"`    // time of the first of these failures
	Error      string     `json:"error"`    // error of the last failed renewal
}

// The states of a credential that renews itself.
const (
	CredentialNew     = "NEW"     // there was never a token
	CredentialActive  = "ACTIVE"  // the token is valid
	CredentialFailing = "FAILING" // the last renewal failed and will be tried again
	CredentialEnded   = "ENDED"   // the token has expired and is not renewed yet
	CredentialStopped = "STOPPED" // the credential is no longer renewed, until an operator renews it or allows access again
)

// Package credits counts the credits that clients spend for refreshes. A client has an account with a
// balance. Each refresh sets credits aside (a hold). They are spent if the refresh brings a version: a
// snapshot or a not-found result is stored for it. Otherwise they are given back.
//
//	state     | becomes   | when
//	----------|-----------|------------------------------------------------------------------
//	HELD      | CAPTURED  | the stored version is at least the number of the update request
//	HELD      | RELEASED  | the refresh was not queued, or its status is FAILED or SUSPENDED
//	HELD      | EXPIRED   | none of the above happened within Config.Hold
//
// Each change is one transaction, which locks the account, changes the hold only if it is HELD, and
// appends an entry to the ledger. So a hold ends once, whatever number of processes try to end it. The
// sums that Ledger.Verify compares:
//
//	balance = sum of amount of the entries = sum of remaining of the grants
//	held    = sum of held of the entries   = sum of amount of the open holds
//
// Example: a plan grants 10 credits (grant: amount +10). Three refreshes set 3 aside (hold: amount -1,
// held +1 each): the balance is 7. One brings a version (capture: held -1), one fails (release: amount
// +1, held -1), and the process of one crashes: after 30 minutes the reaper ends its hold as EXPIRED and
// gives the credit back (also an entry release). The balance is 9: the 10 granted credits without the
// captured one.
package credits

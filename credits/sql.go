package credits

import (
	"time"

	"github.com/freshet/freshet/store"
)

// The statements run in PostgreSQL and SQLite. Times are microseconds since 1970 UTC; 0: no time.
const (
	// openAccount creates the account if the client has none, and locks it until the end of the
	// transaction. Argument: client.
	openAccount = `INSERT INTO credit_accounts (client, plan, balance, held, renews_at) VALUES ($1, '', 0, 0, 0)
ON CONFLICT (client) DO UPDATE SET client = excluded.client RETURNING ` + accountColumns

	accountColumns = `client, plan, balance, held, renews_at`
	// viewColumns are the columns of an account as it is shown. Credits of expired grants are not in
	// the balance, even if their expiry is not in the ledger yet. Arguments: now, first hour of the day.
	viewColumns = `a.client, a.plan, a.balance - (SELECT CAST(COALESCE(SUM(g.remaining), 0) AS bigint) FROM credit_grants g
	WHERE g.client = a.client AND g.remaining > 0 AND g.expires_at > 0 AND g.expires_at <= $1),
	a.held, a.renews_at, (SELECT CAST(COALESCE(SUM(u.used), 0) AS bigint) FROM credit_use u WHERE u.client = a.client AND u.hour >= $2)`
	// selectAccount returns an account. Arguments: now, first hour of the day, client.
	selectAccount = `SELECT ` + viewColumns + ` FROM credit_accounts a WHERE a.client = $3`
	// selectAccounts returns accounts in the order of their clients. Arguments: now, first
	// hour of the day, client to begin after, limit.
	selectAccounts = `SELECT ` + viewColumns + ` FROM credit_accounts a WHERE a.client > $3 ORDER BY a.client LIMIT $4`
	updateAccount  = `UPDATE credit_accounts SET plan = $2, balance = $3, held = $4, renews_at = $5 WHERE client = $1`

	grantColumns = `id, client, amount, remaining, created_at, created_by, expires_at, voided, note`
	// selectGrants returns the grants with remaining credits, in the order in which they are used: the
	// grant that expires first is first. Argument: client.
	selectGrants = `SELECT ` + grantColumns + ` FROM credit_grants WHERE client = $1 AND remaining > 0
ORDER BY CASE expires_at WHEN 0 THEN 1 ELSE 0 END, expires_at, id`
	selectGrant     = `SELECT ` + grantColumns + ` FROM credit_grants WHERE id = $1 AND NOT voided`
	insertGrant     = `INSERT INTO credit_grants (id, client, amount, remaining, created_at, created_by, expires_at, note) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	changeRemaining = `UPDATE credit_grants SET remaining = remaining + $2 WHERE id = $1`
	voidGrant       = `UPDATE credit_grants SET voided = true, expires_at = $2 WHERE id = $1 AND NOT voided`

	holdColumns = `id, client, source, facet, key, number, amount, state, created_at, expires_at`
	insertHold  = `INSERT INTO credit_holds (id, client, idempotency, source, facet, key, number, amount, state, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, 0, $7, 'HELD', $8, $9)`
	// selectRepeated returns the hold of an earlier refresh with the same idempotency key, unless the
	// credits of that hold were given back. Arguments: idempotency, earliest creation.
	selectRepeated = `SELECT ` + holdColumns + ` FROM credit_holds
WHERE idempotency = $1 AND idempotency <> '' AND created_at >= $2 AND state IN ('HELD', 'CAPTURED') ORDER BY created_at DESC LIMIT 1`
	setNumber = `UPDATE credit_holds SET number = $2 WHERE id = $1 AND number = 0`
	// endHold ends a hold once. Arguments: id, state, time.
	endHold = `UPDATE credit_holds SET state = $2, ended_at = $3 WHERE id = $1 AND state = 'HELD' RETURNING ` + holdColumns
	// selectOpenHolds returns open holds in the order of their expiry. Arguments: latest expiry, then
	// expiry and id to begin after, limit.
	selectOpenHolds = `SELECT ` + holdColumns + ` FROM credit_holds
WHERE state = 'HELD' AND expires_at <= $1 AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $4`
	// selectHoldsOf returns the newest open holds of a client. Arguments: client, limit.
	selectHoldsOf = `SELECT ` + holdColumns + ` FROM credit_holds WHERE client = $1 AND state = 'HELD' ORDER BY created_at DESC LIMIT $2`

	insertEntry = `INSERT INTO credit_entries (at, client, kind, grant_id, hold_id, amount, held, balance) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	// selectParts returns the grants from which the credits of a hold were taken. Argument: id of the
	// hold.
	selectParts = `SELECT grant_id, -amount FROM credit_entries WHERE hold_id = $1 AND kind = 'hold' ORDER BY id`
	addUse      = `INSERT INTO credit_use (client, hour, used) VALUES ($1, $2, $3)
ON CONFLICT (client, hour) DO UPDATE SET used = credit_use.used + excluded.used`
	// selectUse returns the captured credits by hour. Arguments: client, first hour.
	selectUse = `SELECT hour, used FROM credit_use WHERE client = $1 AND hour >= $2 ORDER BY hour`
	// selectTop returns the clients that used the most credits, and the sums of all clients. Arguments:
	// first hour, limit.
	selectTop = `SELECT client, CAST(SUM(used) AS bigint) AS s, CAST(SUM(SUM(used)) OVER () AS bigint), COUNT(*) OVER ()
FROM credit_use WHERE hour >= $1 GROUP BY client ORDER BY s DESC, client LIMIT $2`
	selectHeld = `SELECT CAST(COALESCE(SUM(held), 0) AS bigint) FROM credit_accounts`

	// selectSums returns, for each account, the stored balance and the stored held credits, and the two
	// sums that they must equal. It is one statement, so all values belong to the same moment.
	// Arguments: client after which the result begins, limit.
	selectSums = `SELECT a.client, a.balance, a.held,
	(SELECT CAST(COALESCE(SUM(e.amount), 0) AS bigint) FROM credit_entries e WHERE e.client = a.client),
	(SELECT CAST(COALESCE(SUM(e.held), 0) AS bigint) FROM credit_entries e WHERE e.client = a.client),
	(SELECT CAST(COALESCE(SUM(g.remaining), 0) AS bigint) FROM credit_grants g WHERE g.client = a.client AND g.remaining > 0),
	(SELECT CAST(COALESCE(SUM(h.amount), 0) AS bigint) FROM credit_holds h WHERE h.client = a.client AND h.state = 'HELD')
FROM credit_accounts a WHERE a.client > $1 ORDER BY a.client LIMIT $2`
)

func optionalMicros(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

func timeOf(us int64) time.Time { return time.UnixMicro(us).UTC() }

func optionalTime(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := timeOf(us)
	return &t
}

// scan reads the columns accountColumns and, if `more` has their destinations, further columns.
func (a *Account) scan(scan func(...any) error, more ...any) error {
	var renews int64
	err := scan(append([]any{&a.Client, &a.Plan, &a.Balance, &a.Held, &renews}, more...)...)
	a.RenewsAt = optionalTime(renews)
	return err
}

func (g *Grant) scan(scan func(...any) error) error {
	var created, expires int64
	err := scan(&g.ID, &g.Client, &g.Amount, &g.Remaining, &created, &g.CreatedBy, &expires, &g.Voided, &g.Note)
	g.CreatedAt, g.ExpiresAt = timeOf(created), optionalTime(expires)
	return err
}

func (h *Hold) scan(scan func(...any) error) error {
	var created, expires int64
	err := scan(&h.ID, &h.Client, &h.Entity.Source, &h.Entity.Facet, &h.Entity.Key, &h.Number, &h.Amount, &h.State, &created, &expires)
	h.CreatedAt, h.ExpiresAt = timeOf(created), timeOf(expires)
	return err
}

func statement(text string, args ...any) store.Statement {
	return store.Statement{Text: text, Args: args}
}

package retention

import (
	"context"
	"maps"
	"slices"

	"github.com/freshet/freshet/store"
)

// The statements of carryForward. Both databases can execute them.
const (
	// SelectOldEntries returns the oldest entries of the ledger. It leaves out the entries of open
	// holds, because the release of a hold needs them. Arguments: time before which an entry is old,
	// limit.
	SelectOldEntries = `SELECT e.id, e.client, e.at, e.amount, e.held FROM credit_entries e WHERE e.kind <> 'opening' AND e.at < $1
AND NOT EXISTS (SELECT 1 FROM credit_holds h WHERE h.id = e.hold_id AND h.state = 'HELD') ORDER BY e.at LIMIT $2`
	// DeleteEntry deletes an entry. Argument: id.
	DeleteEntry = `DELETE FROM credit_entries WHERE id = $1`
	// AddToOpening adds amounts to the opening entry of a client. Arguments: time of the newest deleted
	// entry, client, sum of amount, sum of held.
	AddToOpening = `INSERT INTO credit_entries (at, client, kind, grant_id, hold_id, amount, held, balance) VALUES ($1, $2, 'opening', '', '', $3, $4, $3)
ON CONFLICT (client) WHERE kind = 'opening' DO UPDATE SET at = excluded.at, amount = credit_entries.amount + excluded.amount,
held = credit_entries.held + excluded.held, balance = credit_entries.balance + excluded.amount`
)

// carried has the sums of the deleted entries of one client.
type carried struct{ at, amount, held int64 }

// carryForward deletes the oldest entries of the ledger of credits. It adds their sums to the opening
// entries of their clients, so that the sum of all entries of a client stays the same.
func carryForward(ctx context.Context, tx store.Tx, before int64, limit int) (deleted int, err error) {
	var statements []store.Statement
	sums := map[string]carried{}
	err = tx.Query(ctx, func(scan func(...any) error) error {
		var id int64
		var client string
		var e carried
		if err := scan(&id, &client, &e.at, &e.amount, &e.held); err != nil {
			return err
		}
		s := sums[client]
		sums[client] = carried{max(s.at, e.at), s.amount + e.amount, s.held + e.held}
		statements = append(statements, store.Statement{Text: DeleteEntry, Args: []any{id}})
		return nil
	}, SelectOldEntries, before, limit)
	if err != nil || len(statements) == 0 {
		return 0, err
	}
	deleted = len(statements)
	for _, client := range slices.Sorted(maps.Keys(sums)) {
		s := sums[client]
		statements = append(statements, store.Statement{Text: AddToOpening, Args: []any{s.at, client, s.amount, s.held}})
	}
	_, err = tx.Exec(ctx, statements...)
	return deleted, err
}

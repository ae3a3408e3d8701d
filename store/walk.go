package store

import "strings"

// KeyRange selects the keys of one facet that begin with Prefix and follow the key After, in the
// order of the keys.
type KeyRange struct {
	Source, Facet, Prefix, After string
}

// SelectStates returns the statement, and its arguments, that reads at most `limit` states in the
// order of their keys: the key, then the columns of ScanState. It reads the primary key, so its
// cost depends on the limit and not on the size of the table.
func (r KeyRange) SelectStates(limit int) (string, []any) {
	return r.statement(`SELECT s.key, `+StateColumns+` FROM snapshot_state s`, "s", limit)
}

// SelectStatuses is like SelectStates, and returns the columns of ScanStatus.
func (r KeyRange) SelectStatuses(limit int) (string, []any) {
	return r.statement(`SELECT `+StatusColumns+` FROM update_status u`, "u", limit)
}

// statement adds the condition, the order and the limit to a query. "alias" is the alias of its table.
func (r KeyRange) statement(query, alias string, limit int) (string, []any) {
	args := []any{r.Source, r.Facet, r.After, r.Prefix, limit}
	condition := "$t.source = $1 AND $t.facet = $2 AND $t.key > $3 AND $t.key >= $4"
	if end := afterPrefix(r.Prefix); end != "" {
		args, condition = append(args, end), condition+" AND $t.key < $6"
	}
	return query + strings.ReplaceAll("\nWHERE "+condition+"\nORDER BY $t.key LIMIT $5", "$t", alias), args
}

// ScanStateInRange reads a state with its entity from a row of SelectStates.
func (r KeyRange) ScanStateInRange(s *State, scan func(...any) error) error {
	s.Entity.Source, s.Entity.Facet = r.Source, r.Facet
	return s.ScanState(func(columns ...any) error { return scan(append([]any{&s.Entity.Key}, columns...)...) })
}

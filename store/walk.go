package store

import "strings"

// SelectStates returns the statement, and its arguments, that reads at most `limit` states of the
// filter's source and facet, in the order of their keys. The keys begin with KeyPrefix and follow
// the key `after`. The columns are the key and then the columns of ScanState. It reads the primary key, so
// its cost depends on the limit and not on the size of the table.
func (f EntityFilter) SelectStates(after string, limit int) (string, []any) {
	return f.InKeyOrder(`SELECT s.key, `+StateColumns+` FROM snapshot_state s`, "s", after, limit)
}

// SelectStatuses is like SelectStates, and returns the columns of ScanStatus.
func (f EntityFilter) SelectStatuses(after string, limit int) (string, []any) {
	return f.InKeyOrder(`SELECT `+StatusColumns+` FROM update_status u`, "u", after, limit)
}

// InKeyOrder adds the filter's condition, the order by key and the limit to a query. The queried table
// must have the columns source, facet and key, and the alias alias. It returns the complete query and
// its arguments.
func (f EntityFilter) InKeyOrder(query, alias, after string, limit int) (string, []any) {
	args := []any{f.Source, f.Facet, after, f.KeyPrefix, limit}
	condition := "$t.source = $1 AND $t.facet = $2 AND $t.key > $3 AND $t.key >= $4"
	if end := afterPrefix(f.KeyPrefix); end != "" {
		args, condition = append(args, end), condition+" AND $t.key < $6"
	}
	return query + strings.ReplaceAll("\nWHERE "+condition+"\nORDER BY $t.key LIMIT $5", "$t", alias), args
}

// ScanStateInRange reads a state with its entity from a row of SelectStates.
func (f EntityFilter) ScanStateInRange(s *State, scan func(...any) error) error {
	s.Entity.Source, s.Entity.Facet = f.Source, f.Facet
	return s.ScanState(func(columns ...any) error { return scan(append([]any{&s.Entity.Key}, columns...)...) })
}

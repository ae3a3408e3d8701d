package store

import (
	"strings"
	"unicode/utf8"
)

// KeyRange selects the entities of one facet whose keys begin with a prefix. An empty prefix selects all.
type KeyRange struct{ Source, Facet, KeyPrefix string }

// InKeyOrder adds the range's condition, the order by key and the limit to a query. The queried table
// must have the columns source, facet and key, and the alias alias. It returns the complete query and
// its arguments.
func (r KeyRange) InKeyOrder(query, alias, after string, limit int) (string, []any) {
	args := []any{r.Source, r.Facet, after, r.KeyPrefix, limit}
	condition := "$t.source = $1 AND $t.facet = $2 AND $t.key > $3 AND $t.key >= $4"
	if end := AfterPrefix(r.KeyPrefix); end != "" {
		args, condition = append(args, end), condition+" AND $t.key < $6"
	}
	return query + strings.ReplaceAll("\nWHERE "+condition+"\nORDER BY $t.key LIMIT $5", "$t", alias), args
}

// AfterPrefix returns the smallest text, in byte order, that is greater than all texts that begin
// with the prefix; empty if there is none.
func AfterPrefix(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune:
			continue
		case 0xD7FF: // the next code points are surrogates, invalid in UTF-8: skip them
			last = 0xDFFF
		}
		return prefix + string(last+1)
	}
	return ""
}

package collection

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/freshet/freshet/store"
)

// A statement has several forms (shapes), which differ in their number of rows or ids: 1, 2, 4 and so
// on up to maxRows. `maxShape` is the number of shapes.
const (
	maxShape = 7
	maxRows  = 1 << (maxShape - 1)
)

// rowsStatement inserts rows into a table. It has one text for each shape. So a database prepares only
// maxShape texts for it.
type rowsStatement [maxShape]string

// insertion returns the statement that inserts rows with the given number of columns. The text of the
// statement consists of `before`, the placeholders of the rows, and `after`.
func insertion(before string, columns int, after string) (r rowsStatement) {
	for shape := range r {
		var b strings.Builder
		b.WriteString(before + ` VALUES `)
		for row := range 1 << shape {
			if row > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`(` + placeholders(row*columns+1, columns) + `)`)
		}
		r[shape] = b.String() + after
	}
	return r
}

// of returns the statements that insert these rows.
func (r *rowsStatement) of(rows [][]any) (statements []store.Statement) {
	for len(rows) > 0 {
		shape := min(bits.Len(uint(len(rows)))-1, maxShape-1)
		args := make([]any, 0, len(rows[0])<<shape)
		for _, row := range rows[:1<<shape] {
			args = append(args, row...)
		}
		statements = append(statements, store.Statement{Text: r[shape], Args: args})
		rows = rows[1<<shape:]
	}
	return statements
}

// idsQuery reads the rows of some ids of a collection, at most maxRows. It has one text for each shape.
type idsQuery [maxShape]string

// queryByIDs returns the query that consists of the text `before` and a list of ids.
func queryByIDs(before string) (q idsQuery) {
	for shape := range q {
		q[shape] = before + ` IN (` + placeholders(4, 1<<shape) + `)`
	}
	return q
}

// of returns the statement for the given ids. If their number is no power of two, the last id is
// repeated.
func (q *idsQuery) of(key []any, ids []string) store.Statement {
	shape := bits.Len(uint(len(ids) - 1))
	args := key
	for n := range 1 << shape {
		args = append(args, ids[min(n, len(ids)-1)])
	}
	return store.Statement{Text: q[shape], Args: args}
}

// placeholders returns the text of n placeholders such as $4,$5,$6. The first one has the number
// `first`.
func placeholders(first, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(first + i))
	}
	return b.String()
}

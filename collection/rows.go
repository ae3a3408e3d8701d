package collection

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/freshet/freshet/store"
)

// maxShape is the number of shapes of a statement: it has 1, 2, 4 and so on up to maxRows rows or ids.
const (
	maxShape = 7
	maxRows  = 1 << (maxShape - 1)
)

// rowsStatement inserts rows. Its texts differ only in the number of rows, which is a power of two, so
// that a database prepares few texts.
type rowsStatement [maxShape]string

// insertion returns the statement that inserts rows with this number of columns. before and after are the parts
// of the text around the rows.
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
		var args []any
		for _, row := range rows[:1<<shape] {
			args = append(args, row...)
		}
		statements = append(statements, store.Statement{Text: r[shape], Args: args})
		rows = rows[1<<shape:]
	}
	return statements
}

// idsQuery reads the rows of at most maxRows ids of a collection.
type idsQuery [maxShape]string

// queryByIDs returns the query whose text ends with the ids.
func queryByIDs(before string) (q idsQuery) {
	for shape := range q {
		q[shape] = before + ` IN (` + placeholders(4, 1<<shape) + `)`
	}
	return q
}

// of returns the statement for the ids. The last id is repeated if their number is no power of two.
func (q *idsQuery) of(key []any, ids []string) store.Statement {
	shape := bits.Len(uint(len(ids) - 1))
	args := key
	for n := range 1 << shape {
		args = append(args, ids[min(n, len(ids)-1)])
	}
	return store.Statement{Text: q[shape], Args: args}
}

// placeholders returns n placeholders, the first with the given number.
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

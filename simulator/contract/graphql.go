package contract

import (
	"encoding/json"
	"regexp"
	"strconv"
)

// query is the body of a GraphQL call.
type query struct {
	Query     string         `json:"query"`
	Variables map[string]any `json:"variables"`
}

// readQuery is empty for a body that is none.
func readQuery(body []byte) query {
	var q query
	if json.Unmarshal(body, &q) != nil {
		return query{}
	}
	return q
}

var connections = regexp.MustCompile(`[{}]|\b(?:first|last)\s*:\s*(\d+|\$\w+)`)

// sizes adds up what a query's connections would take at their full sizes: the
// requests, one for each parent, and the nodes. A connection inside another is
// there once for each of its nodes.
func (q query) sizes() (calls, nodes int) {
	const most = 1 << 30 // of a product; sums of a few stay within an int
	parents := []int{1}
	size := 1 // of the connection whose selection comes next
	for _, m := range connections.FindAllStringSubmatch(q.Query, -1) {
		top := parents[len(parents)-1]
		switch m[0] {
		case "{":
			parents = append(parents, min(most, top*size))
			size = 1
		case "}":
			if len(parents) > 1 {
				parents = parents[:len(parents)-1]
			}
		default:
			size = q.size(m[1])
			calls += top
			nodes += min(most, top*size)
		}
	}
	return calls, nodes
}

// size reads a number or a variable; one that isn't given counts as 100, the
// most that GitHub allows.
func (q query) size(text string) int {
	if text[0] == '$' {
		n, given := q.Variables[text[1:]].(float64)
		if !given {
			return 100
		}
		return int(min(max(0, n), 1000))
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1000
	}
	return min(n, 1000)
}

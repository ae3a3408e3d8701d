package contract

import (
	"encoding/json"
	"regexp"
	"strconv"
)

// query is the body of a GraphQL request.
type query struct {
	Query     string         `json:"query"`
	Variables map[string]any `json:"variables"`
}

// readQuery parses the body of a GraphQL request. It returns the zero value for an invalid body.
func readQuery(body []byte) query {
	var q query
	if json.Unmarshal(body, &q) != nil {
		return query{}
	}
	return q
}

var connections = regexp.MustCompile(`[{}]|\b(?:first|last)\s*:\s*(\d+|\$\w+)`)

// sizes returns the number of requests and of nodes that a query needs if each of its connections
// (paged lists) has its maximum size. A connection needs one request for each node of its parent.
func (q query) sizes() (calls, nodes int) {
	const maxProduct = 1 << 30 // bounds each product, so that the sums do not overflow
	parents := []int{1}
	size := 1 // maximum size of the connection (paged list) that the next "{" opens; 1 if it opens none
	for _, m := range connections.FindAllStringSubmatch(q.Query, -1) {
		top := parents[len(parents)-1]
		switch m[0] {
		case "{":
			parents = append(parents, min(maxProduct, top*size))
			size = 1
		case "}":
			if len(parents) > 1 {
				parents = parents[:len(parents)-1]
			}
		default:
			size = q.size(m[1])
			calls += top
			nodes += min(maxProduct, top*size)
		}
	}
	return calls, nodes
}

// size parses a number or a variable. A missing variable counts as 100, GitHub's maximum.
func (q query) size(text string) int {
	if text[0] == '$' {
		n, ok := q.Variables[text[1:]].(float64)
		if !ok {
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

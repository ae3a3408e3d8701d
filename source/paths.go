package source

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// pathNode is one state of the automaton that is compiled from the settings `select` and `ignore`. The
// state decides whether the value at one position of a document is kept, and whether it is hashed.
type pathNode struct {
	kept    bool // true means that the whole value is kept, except for its ignored parts
	within  bool // true means that only the selected parts of the value are kept
	ignored bool
	named   map[string]*pathNode
	other   *pathNode // node for member names that `named` does not contain
}

// keepAll is the node below which every value of a document is kept.
var keepAll = func() *pathNode {
	n := &pathNode{kept: true}
	n.other = n
	return n
}()

// drops reports whether a value is removed. `first` is the first byte of the value. If only parts of
// the value are selected, the value is kept only if it is an object or an array.
func (n *pathNode) drops(first byte) bool {
	return !n.kept && (!n.within || (first != '{' && first != '['))
}

func (n *pathNode) member(name []byte) *pathNode {
	if child, ok := n.named[string(name)]; ok {
		return child
	}
	return n.other
}

func (n *pathNode) element(i int) *pathNode {
	if len(n.named) == 0 {
		return n.other
	}
	var digits [20]byte
	return n.member(strconv.AppendInt(digits[:0], int64(i), 10))
}

// path is a list of names. "*" matches any one name or array index.
type path []string

const maxPathNames = 64

// newPaths compiles the settings "select" and "ignore". A path consists of names joined by dots, the
// first being the document's name. A dot within a name has a backslash before it.
func newPaths(selected, ignored []string) (*pathNode, error) {
	b := pathBuilder{nodes: map[string]*pathNode{}}
	var at pathState
	for _, list := range []struct {
		name  string
		paths []string
		to    *[]path
	}{{"select", selected, &at.selects}, {"ignore", ignored, &at.ignores}} {
		for i, text := range list.paths {
			p, err := parsePath(text)
			if err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", list.name, i, err)
			}
			*list.to = append(*list.to, p)
		}
	}
	at.kept = len(selected) == 0
	return b.node(at), nil
}

func parsePath(text string) (path, error) {
	var p path
	var name strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
			name.WriteByte(text[i])
		case text[i] == '.':
			p = append(p, name.String())
			name.Reset()
		default:
			name.WriteByte(text[i])
		}
	}
	p = append(p, name.String())
	if len(p) > maxPathNames {
		return nil, fmt.Errorf("%.40q… has %d members; at most %d are allowed in a path", text, len(p), maxPathNames)
	}
	if slices.Contains(p, "") {
		return nil, fmt.Errorf("%q has an empty name; write names joined by single dots", text)
	}
	for i, n := range p {
		if n != "*" {
			p[i] = canonicalName(n)
		}
	}
	return p, nil
}

// canonicalName returns the name as it is written between quotes in canonical JSON.
func canonicalName(name string) string {
	var out []byte
	for _, r := range name {
		out = appendEscaped(out, r)
	}
	return string(out)
}

// pathState describes one position in a document: the remaining names of each path that can still
// match below it, and whether a path already matches it. Each pathState has one pathNode.
type pathState struct {
	selects, ignores []path
	kept, ignored    bool
}

type pathBuilder struct{ nodes map[string]*pathNode }

func (b *pathBuilder) node(s pathState) *pathNode {
	key := fmt.Sprintf("%q %q %v %v", s.selects, s.ignores, s.kept, s.ignored)
	if n, ok := b.nodes[key]; ok {
		return n
	}
	n := &pathNode{kept: s.kept, within: len(s.selects) > 0, ignored: s.ignored}
	b.nodes[key] = n // stored before its children, because a node may be its own child
	names := map[string]bool{}
	for _, p := range slices.Concat(s.selects, s.ignores) {
		if p[0] != "*" {
			names[p[0]] = true
		}
	}
	if len(names) > 0 {
		n.named = map[string]*pathNode{}
	}
	for name := range maps.Keys(names) {
		n.named[name] = b.node(s.step(name))
	}
	n.other = b.node(s.step("*"))
	return n
}

// step returns the state below a member of that name.
func (s pathState) step(name string) pathState {
	below := pathState{kept: s.kept}
	for _, p := range s.selects {
		if p[0] != name && p[0] != "*" {
			continue
		}
		if len(p) == 1 {
			below.kept = true
		} else {
			below.selects = append(below.selects, p[1:])
		}
	}
	if below.kept {
		below.selects = nil
	}
	for _, p := range s.ignores {
		if p[0] != name && p[0] != "*" {
			continue
		}
		if len(p) == 1 {
			below.ignored = true
		} else {
			below.ignores = append(below.ignores, p[1:])
		}
	}
	return below
}

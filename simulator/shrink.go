package simulator

import (
	"bytes"
	"encoding/json"
)

// shrinkFactor is the factor by which a fault of kind Shrink shortens lists. The real API shortened
// a list too: it returned 77 bosses, later 53, 2 and none, as a character stayed inactive.
const shrinkFactor = 20

// shrunk returns the document with each top-level list truncated to its first entries. The
// result is valid JSON of the same shape but incomplete. A document without lists stays
// unchanged.
func (c *content) shrunk(doc []part) []byte {
	// The document's members are copied one by one, because a map would not keep their order.
	from := json.NewDecoder(bytes.NewReader(appendPlain(nil, doc)))
	var out bytes.Buffer
	token := func() string {
		t, err := from.Token()
		if err != nil {
			panic(err) // cannot happen: the document is valid JSON
		}
		name, _ := t.(string)
		return name
	}
	token() // skip the opening brace
	out.WriteByte('{')
	for i := 0; from.More(); i++ {
		if i > 0 {
			out.WriteByte(',')
		}
		name, _ := json.Marshal(token())
		out.Write(name)
		out.WriteByte(':')
		var value json.RawMessage
		if err := from.Decode(&value); err != nil {
			panic(err) // cannot happen: the document is valid JSON
		}
		var list []json.RawMessage
		if value[0] == '[' && json.Unmarshal(value, &list) == nil {
			value, _ = json.Marshal(list[:len(list)/shrinkFactor])
		}
		out.Write(value)
	}
	out.WriteByte('}')
	var spaced bytes.Buffer
	var err error
	if c.pretty {
		err = json.Indent(&spaced, out.Bytes(), "", "  ")
	} else {
		err = json.Compact(&spaced, out.Bytes())
	}
	if err != nil {
		panic(err) // cannot happen: the document is valid JSON
	}
	return spaced.Bytes()
}

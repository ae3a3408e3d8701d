package simulator

import (
	"bytes"
	"encoding/json"
)

// shrinkFactor is by how much a list is shorter in a shrunken document. The real API
// was seen to go from 77 bosses to 53, to 2 and to none as a character stayed
// away.
const shrinkFactor = 20

// shrunk returns the document with the first few entries of each of its lists:
// valid, of the same shape, and not true. What holds no list stays as it is.
func (c *content) shrunk(doc []part) []byte {
	// The members are copied one by one, so that they keep their order.
	from := json.NewDecoder(bytes.NewReader(appendPlain(nil, doc)))
	var out bytes.Buffer
	token := func() string {
		t, err := from.Token()
		if err != nil {
			panic(err) // our own document
		}
		name, _ := t.(string)
		return name
	}
	token() // {
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
			panic(err) // our own document
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
		panic(err) // our own document
	}
	return spaced.Bytes()
}

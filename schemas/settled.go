package schemas

import (
	"fmt"
	"strconv"
	"strings"
)

const settledPrefix = "settled:"

// SettledChannel returns the Redis channel on which every settled request of the source is
// published.
func SettledChannel(source string) string { return settledPrefix + source }

// Settled announces that a request of the entity was settled, or that the entity was deleted. The
// message does not contain the result; readers find it in the database.
type Settled struct {
	Entity Entity
	Number int64 // the field Number of the settled request's End; 0 means that the entity was deleted
}

// Encode returns the message: the number, one space, facet/key. The source is not part of the
// message, because the channel contains its name.
func (s Settled) Encode() string {
	return strconv.FormatInt(s.Number, 10) + " " + s.Entity.Facet + "/" + s.Entity.Key
}

// DecodeSettled decodes a message of SettledChannel.
func DecodeSettled(channel, message string) (Settled, error) {
	source, isSettled := strings.CutPrefix(channel, settledPrefix)
	if !isSettled {
		return Settled{}, fmt.Errorf("channel %q is no channel of settled requests", channel)
	}
	digits, name, _ := strings.Cut(message, " ")
	number, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return Settled{}, fmt.Errorf("message %q does not begin with a number", message)
	}
	facet, key, _ := strings.Cut(name, "/") // a facet's name contains no slash, so the first slash ends it
	s := Settled{Entity{Source: source, Facet: facet, Key: key}, int64(number)}
	if err := s.Entity.Check(); err != nil {
		return Settled{}, fmt.Errorf("message %q contains no valid entity: %w", message, err)
	}
	return s, nil
}

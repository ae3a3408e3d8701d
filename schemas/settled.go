package schemas

import (
	"fmt"
	"strconv"
	"strings"
)

const settledPrefix = "settled:"

// SettledChannel is the Redis channel on which every settled request of the
// source is told, by whichever process settled it.
func SettledChannel(source string) string { return settledPrefix + source }

// Settled says that a request of the entity reached its end. What that was is
// read where it is kept.
type Settled struct {
	Entity Entity
	Number int64 // of the End
}

// Encode returns the message: the number, one space, facet/key. The source is the
// channel's.
func (s Settled) Encode() string {
	return strconv.FormatInt(s.Number, 10) + " " + s.Entity.Facet + "/" + s.Entity.Key
}

// DecodeSettled is the reverse of SettledChannel and Encode.
func DecodeSettled(channel, message string) (Settled, error) {
	source, isSettled := strings.CutPrefix(channel, settledPrefix)
	if !isSettled {
		return Settled{}, fmt.Errorf("the channel %q tells of no settled requests", channel)
	}
	digits, name, _ := strings.Cut(message, " ")
	number, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return Settled{}, fmt.Errorf("the message %q does not begin with a number", message)
	}
	facet, key, _ := strings.Cut(name, "/") // neither a number nor a facet holds what ends it
	s := Settled{Entity{Source: source, Facet: facet, Key: key}, int64(number)}
	if err := s.Entity.Check(); err != nil {
		return Settled{}, fmt.Errorf("the message %q names no entity: %w", message, err)
	}
	return s, nil
}

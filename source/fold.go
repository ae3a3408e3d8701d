package source

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// KeyFold is the rule by which two spellings of a key are one key.
type KeyFold string

// The rules of KeyFold. Lower replaces upper-case letters by lower-case letters. NFC composes
// characters (Unicode form NFC), so that both spellings of 가 and of é are one.
const (
	FoldNone     KeyFold = "none"
	FoldLower    KeyFold = "lower"
	FoldNFC      KeyFold = "nfc"
	FoldNFCLower KeyFold = "nfc-lower"
)

func (k KeyFold) check() error {
	switch k {
	case "", FoldNone, FoldLower, FoldNFC, FoldNFCLower:
		return nil
	}
	return fmt.Errorf("keyFold: %q must be none, lower, nfc or nfc-lower", string(k))
}

// FoldKey returns the canonical spelling of a key: the spelling under which the entity is fetched,
// stored and read. Folding a canonical key returns the same key.
func (f Facet) FoldKey(key string) string {
	switch f.KeyFold {
	case FoldLower:
		return lower(key)
	case FoldNFC:
		return norm.NFC.String(key)
	case FoldNFCLower:
		return norm.NFC.String(lower(norm.NFC.String(key)))
	case FoldNone:
	}
	return key
}

// lower returns the key in lower case. It leaves a key that is not valid UTF-8 as it is, because
// such a key must be rejected and not repaired.
func lower(key string) string {
	if !utf8.ValidString(key) {
		return key
	}
	return strings.ToLower(key)
}

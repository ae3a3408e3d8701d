package guess

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

var (
	number      = regexp.MustCompile(`^[0-9]{1,20}$`)
	shortNumber = regexp.MustCompile(`^[0-9]{1,2}$`)
	decimal     = regexp.MustCompile(`^-?[0-9]{1,10}\.[0-9]{1,12}$`)
	uuid        = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
	hexID       = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
	date        = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}(-[0-9]{2})?$`)
	version     = regexp.MustCompile(`(?i)^(v|api|rest)?[0-9]+([._][0-9]+)*$`)
	mixedID     = regexp.MustCompile(`^[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*$`)
	wordEnd     = regexp.MustCompile(`^[A-Za-z]+[0-9]+$`)
	tokenish    = regexp.MustCompile(`^(sk|pk|rk)_(live|test)_|^gh[pousr]_|^github_pat_|^glpat-|^xox[abprs]-|^eyJ[0-9A-Za-z_-]+\.|^AKIA[0-9A-Z]{12}|^AIza[0-9A-Za-z_-]{20}|^bot[0-9]+:`)
)

// fixedWords are path segments after a plural noun that are not ids.
var fixedWords = []string{"me", "self", "current", "search", "latest", "list", "all", "count", "new", "recent", "popular", "top", "trending", "random", "today", "stats", "by-name", "lookup"}

// isPlural reports whether a path segment is the name of a collection, such as products.
func isPlural(segment string) bool {
	word := strings.ToLower(segment)
	if slices.Contains([]string{"people", "children", "media", "news", "data", "person", "repo", "by-name", "by-id"}, word) {
		return true
	}
	last := word[strings.LastIndexAny(word, "-_")+1:]
	return len(last) > 2 && strings.HasSuffix(last, "s") && !strings.HasSuffix(last, "ss") && !strings.HasSuffix(last, "us") && !strings.HasSuffix(last, "is")
}

// singular returns the singular of a noun: product for products.
func singular(word string) string {
	switch {
	case word == "people":
		return "person"
	case word == "children":
		return "child"
	case slices.Contains([]string{"movies", "cookies", "calories", "zombies"}, word):
		return strings.TrimSuffix(word, "s")
	case word == "news" || word == "series" || word == "media" || !isPlural(word):
		return word
	case strings.HasSuffix(word, "ies") && len(word) > 4:
		return strings.TrimSuffix(word, "ies") + "y"
	case strings.HasSuffix(word, "sses") || strings.HasSuffix(word, "xes") || strings.HasSuffix(word, "ches") || strings.HasSuffix(word, "shes"):
		return strings.TrimSuffix(word, "es")
	}
	return strings.TrimSuffix(word, "s")
}

// isStrongID reports whether the text alone shows that it is an id, as a number or a UUID does.
func isStrongID(text string) bool {
	switch {
	case number.MatchString(text) || uuid.MatchString(text) || decimal.MatchString(text):
		return true
	case date.MatchString(text) || version.MatchString(text) || wordEnd.MatchString(text):
		return false
	}
	return hexID.MatchString(text) && strings.ContainsAny(text, "0123456789") || len(text) >= 6 && mixedID.MatchString(text)
}

// isKey reports whether a text can be the key of an entity (schemas.CheckKey, with a lower maximum
// length).
func isKey(text string) bool {
	return text != "" && len(text) <= 200 && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) && text != "." && text != ".."
}

// idKind describes the form of an id, such as a number or a UUID, for a note.
func idKind(text string) string {
	switch {
	case number.MatchString(text):
		return "a number"
	case uuid.MatchString(text):
		return "a UUID"
	case hexID.MatchString(text):
		return "a hexadecimal id"
	}
	return "a name or an id"
}

// anyKey is the regular expression for ids with unusual characters.
const anyKey = ".{1,200}"

// keyPattern returns a regular expression that matches ids like text.
func keyPattern(text string) string {
	switch {
	case number.MatchString(text):
		return "[0-9]{1,20}"
	case decimal.MatchString(text):
		return `-?[0-9]{1,10}\.[0-9]{1,12}`
	case uuid.MatchString(text):
		return "[0-9A-Fa-f-]{36}"
	case hexID.MatchString(text) && strings.ContainsAny(text, "0123456789"):
		return fmt.Sprintf("[0-9a-f]{%d}", len(text))
	}
	const letters = "0-9A-Za-z_."
	other := ""
	for _, r := range text {
		switch {
		case r < 0x80 && (r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '_' || r == '-' || r == '.'):
		case r >= 0x80 && unicode.IsOneOf([]*unicode.RangeTable{unicode.L, unicode.M, unicode.N}, r):
			if !strings.Contains(other, `\pL`) {
				other += `\pL\pM\pN`
			}
		case strings.ContainsRune("~@:+$!*'(), /%&=;|", r):
			if !strings.ContainsRune(other, r) {
				other += string(r)
			}
		default:
			return anyKey
		}
	}
	longest := 80
	if len(text) > longest {
		longest = 200
	}
	return fmt.Sprintf("[%s%s-]{1,%d}", letters, other, longest)
}

// secretNames are names of query parameters that contain a credential, in lower case and without
// separators.
var secretNames = []string{
	"apikey", "apitoken", "accesskey", "accesstoken", "appkey", "authkey", "authtoken", "servicekey", "subscriptionkey", "privatekey", "clientsecret", "consumerkey", "consumersecret",
	"token", "secret", "password", "passwd", "pwd", "pass", "auth", "authorization", "signature", "sig", "credential", "credentials", "session", "sessionid", "sid", "jwt", "bearer", "xapikey", "apisecret", "appsecret", "usertoken", "oauthtoken",
}

// isSecret reports whether a query parameter contains a credential, by its name or its value.
func isSecret(name, value string) bool {
	plain := strings.NewReplacer("_", "", "-", "", ".", "", "$", "").Replace(strings.ToLower(name))
	switch {
	case value == "":
		return false
	case tokenish.MatchString(value) || slices.Contains(secretNames, plain):
		return true
	}
	return (plain == "appid" || strings.HasSuffix(plain, "key") || strings.HasSuffix(plain, "secret") || strings.HasSuffix(plain, "password")) && looksRandom(value)
}

// looksRandom reports whether a text looks like a token: at least 16 characters with digits and
// letters, and not a UUID.
func looksRandom(text string) bool {
	return len(text) >= 16 && !uuid.MatchString(text) && strings.ContainsAny(text, "0123456789") && strings.ContainsFunc(text, unicode.IsLetter) && !strings.Contains(text, " ")
}

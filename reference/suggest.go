package reference

import (
	"regexp"
	"slices"
	"strings"
)

var (
	wordStart = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	notInName = regexp.MustCompile(`[^A-Z0-9]+`)
)

// EnvName returns the form of a name in environment variables: HIGH_RESERVE for highReserve, and
// CLIENT_CA_FILE for clientCAFile.
func EnvName(name string) string {
	return notInName.ReplaceAllString(strings.ToUpper(wordStart.ReplaceAllString(name, "${1}${3}_${2}${4}")), "_")
}

// maxTypos is the maximum number of wrong characters in a misspelt name.
const maxTypos = 2

// Suggest returns the known name that the user probably meant by an unknown name. This is the most
// similar name, if it differs in at most maxTypos characters (fewer for short names). Otherwise
// Suggest compares the words of the names: it returns the name whose common words with the unknown
// name have the most characters in all. Without common words it returns an empty string.
func Suggest(unknown string, known []string) string {
	unknown = EnvName(unknown)
	closest, found := min(maxTypos, (len(unknown)-1)/2)+1, ""
	sorted := slices.Sorted(slices.Values(known))
	for _, name := range sorted {
		if n := distance(unknown, EnvName(name)); n < closest {
			closest, found = n, name
		}
	}
	if found != "" {
		return found
	}
	most := 0
	for _, name := range sorted {
		common, words := 0, strings.Split(EnvName(name), "_")
		for word := range strings.SplitSeq(unknown, "_") {
			if slices.Contains(words, word) {
				common += len(word)
			}
		}
		if common > most {
			most, found = common, name
		}
	}
	return found
}

// distance returns the Levenshtein distance of two texts: how many single characters must be
// inserted, deleted or replaced to change one text into the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

package source

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"golang.org/x/text/unicode/norm"
)

// aliasConfig has the facets id and character. The ocid of character comes from id.
func aliasConfig(change func(id, character *Facet)) Config {
	id, character := DefaultFacet(), DefaultFacet()
	id.NotFoundFor = 10 * time.Minute
	id.Documents = map[string]Document{"id": {Path: "/id?character_name={key}"}}
	character.Documents = map[string]Document{"basic": {Path: "/basic?ocid={ocid}"}}
	character.Params = map[string]Param{"ocid": {From: "id", Path: "id.ocid"}}
	if change != nil {
		change(&id, &character)
	}
	config := DefaultConfig()
	config.BaseURL = "https://upstream.example"
	config.Facets = map[string]Facet{"id": id, "character": character}
	return config
}

func TestAlias_ConnectsTwoFacets(t *testing.T) {
	s, err := New("test", aliasConfig(nil), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	character, _ := s.Facet("character")
	id, _ := s.Facet("id")
	if got := character.Aliases(); len(got) != 1 || got[0] != (Alias{"ocid", "id", "id.ocid"}) {
		t.Errorf("aliases of character: got %v", got)
	}
	if got := strings.Join(id.AliasUsers(), " "); got != "character" {
		t.Errorf("users of id: got %q, want character", got)
	}
	if got := character.AliasNotFoundFor(); got != 10*time.Minute {
		t.Errorf("AliasNotFoundFor: got %v, want 10m", got)
	}
	if got := s.MissingParams("character", "a", nil); got != nil {
		t.Errorf("missing params: got %v, want none, because a worker fills the alias", got)
	}
	if _, err := s.Plan(Request{Facet: "character", Key: "a", Params: map[string]string{"ocid": "o 1"}}); err != nil {
		t.Errorf("plan with the alias's value: %v", err)
	}
}

func TestAlias_RejectsInvalidSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(id, character *Facet)
		want   string
	}{
		"circle": {func(id, _ *Facet) {
			id.Params = map[string]Param{"name": {From: "character", Path: "basic.name"}}
		}, "character from id from character"},
		"itself": {func(_, character *Facet) {
			character.Params = map[string]Param{"ocid": {From: "character", Path: "basic.ocid"}}
		}, "character from character"},
		"unknown facet":    {func(_, c *Facet) { c.Params = map[string]Param{"ocid": {From: "ids", Path: "id.ocid"}} }, `no facet "ids"; the facets are: character, id`},
		"unknown document": {func(_, c *Facet) { c.Params = map[string]Param{"ocid": {From: "id", Path: "ids.ocid"}} }, "must begin with a document of facet id, which has id"},
		"no path":          {func(_, c *Facet) { c.Params = map[string]Param{"ocid": {From: "id"}} }, "an alias needs `from`"},
		"no member":        {func(_, c *Facet) { c.Params = map[string]Param{"ocid": {From: "id", Path: "id"}} }, "must be document.member"},
		"ignored":          {func(id, _ *Facet) { id.Ignore = []string{"id.ocid"} }, "covered by the facet's setting `ignore`"},
		"not selected":     {func(id, _ *Facet) { id.Select = []string{"id.name"} }, "not covered by the facet's setting `select`"},
		"other folding":    {func(id, _ *Facet) { id.KeyFold = FoldLower }, "must have the same keyFold"},
		"unknown folding":  {func(id, c *Facet) { id.KeyFold, c.KeyFold = "upper", "upper" }, "keyFold: \"upper\" must be none, lower, nfc or nfc-lower"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New("test", aliasConfig(c.change), nil, 1)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestAlias_KeyMustFitBothFacets(t *testing.T) {
	s, err := New("test", aliasConfig(func(id, c *Facet) { id.KeyPattern, c.KeyPattern = "[a-z]+", ".+" }), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CheckKey("character", "A"); err == nil || !strings.Contains(err.Error(), "keyPattern of test/id") {
		t.Errorf("got %v, want an error about the keyPattern of id", err)
	}
}

func TestAlias_ValueMustBeText(t *testing.T) {
	a := Alias{"ocid", "id", "id.ocid"}
	for content, want := range map[string]string{
		`{"id":{"ocid":"a&b"}}`: "a&b", `{"id":{"ocid":17}}`: "17",
		`{"id":{}}`: "", `{"id":{"ocid":""}}`: "", `{"id":{"ocid":{}}}`: "", `{"id":{"ocid":null}}`: "", `{"id":{"ocid":true}}`: "",
	} {
		got, err := a.Value([]byte(content))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q (%v), want %q", content, got, err, want)
		}
	}
}

func TestParam_IsTextOrSection(t *testing.T) {
	const text = "lang: en\nocid:\n  from: id\n  path: id.ocid\n"
	var params map[string]Param
	if err := yaml.UnmarshalWithOptions([]byte(text), &params, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if params["lang"] != (Param{Text: "en"}) || params["ocid"] != (Param{From: "id", Path: "id.ocid"}) {
		t.Errorf("got %+v", params)
	}
	if got, err := yaml.Marshal(params); err != nil || string(got) != text {
		t.Errorf("written: got %q (%v), want %q", got, err, text)
	}
}

func TestFoldKey_MakesSpellingsOneKey(t *testing.T) {
	for _, c := range []struct {
		fold      KeyFold
		key, want string
	}{
		{FoldNone, "Aé", "Aé"},
		{FoldLower, "AbÉ", "abé"},
		{FoldNFC, norm.NFD.String("가나É"), "가나É"},
		{FoldNFCLower, norm.NFD.String("가ÉB"), "가éb"},
		{FoldLower, "A\xff", "A\xff"},
	} {
		if got := (Facet{KeyFold: c.fold}).FoldKey(c.key); got != c.want {
			t.Errorf("%s of %q: got %q, want %q", c.fold, c.key, got, c.want)
		}
	}
}

// A folded key must not fold to another key, or an entity would have two URLs.
func TestFoldKey_IsIdempotent(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200_000 {
		var key []rune
		for range 1 + rng.IntN(4) {
			if r := rune(rng.IntN(0x3000)); !unicode.IsControl(r) {
				key = append(key, r)
			}
		}
		for _, fold := range []KeyFold{FoldLower, FoldNFC, FoldNFCLower} {
			f := Facet{KeyFold: fold}
			once := f.FoldKey(string(key))
			if twice := f.FoldKey(once); twice != once {
				t.Fatalf("%s of %+q: got %+q, and %+q of that", fold, string(key), once, twice)
			}
		}
	}
}

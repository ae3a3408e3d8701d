package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/problem"
)

// DecodeBody decodes a request body that must be one JSON object, without unknown members. `form` is
// the end of the problem's text and describes the object, as in `; the body is {"key":"a"}`.
func DecodeBody(body io.Reader, into any, form string) error {
	text, err := io.ReadAll(body)
	if err != nil {
		return problem.Body(err)
	}
	switch {
	case !utf8.Valid(text):
		err = errors.New("the body is not valid UTF-8")
	case !IsObject(text):
		err = errors.New("the body must be an object")
	default:
		err = Decode(text, into)
	}
	if err != nil {
		return problem.Body(fmt.Errorf("%w%s", err, form))
	}
	return nil
}

// IsObject reports whether a JSON text is an object. Callers check this first, because
// encoding/json decodes null into a Go struct without an error.
func IsObject(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

// Decode decodes a text that must be exactly one JSON value, without unknown members. The text of its
// errors is for the client of the API.
func Decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at := ""
		if wrong.Field != "" {
			at = wrong.Field + ": "
		}
		return fmt.Errorf("%sgot %s, want %s", at, wrong.Value, describeType(wrong.Type))
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON value")
	}
	return nil
}

func describeType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		if t.Name() == "Duration" {
			return "a duration as in \"6h\""
		}
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	default:
		return "an object"
	}
}

// MaxNoteLength is the maximum length of a note in the audit, in characters.
const MaxNoteLength = 1000

// CheckNote returns an error if a note is too long for the audit, or is not one line of text.
func CheckNote(note string) error {
	if utf8.RuneCountInString(note) > MaxNoteLength || !utf8.ValidString(note) || strings.ContainsFunc(note, unicode.IsControl) {
		return fmt.Errorf("the note must be one line of at most %d characters", MaxNoteLength)
	}
	return nil
}

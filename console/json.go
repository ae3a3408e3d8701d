package console

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// jsonBody is a page that chooses the value of its JSON form. Other pages are encoded field by
// field (jsonValue).
type jsonBody interface{ jsonBody() any }

// jsonBody returns the content that the stream of a live page sends.
func (f liveStatus) jsonBody() any { return f }

// jsonValue returns the JSON form of a page's data. The names of fields begin with a small letter. A
// value with a JSON form of its own keeps that form. Fields of the type []byte are left out: the
// pages contain their text in other fields, if the client may see it.
func jsonValue(body any) any {
	if own, ok := body.(jsonBody); ok {
		return own.jsonBody()
	}
	return plain(reflect.ValueOf(body))
}

func plain(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	// A page can have the JSON form of a type that it embeds. That form contains nothing else of the
	// page, and may contain more than the client may see.
	if _, own := reflect.TypeAssert[json.Marshaler](v); own && v.Type().PkgPath() != reflect.TypeFor[page]().PkgPath() {
		return v.Interface()
	}
	switch v.Kind() { //nolint:exhaustive // the other kinds are encoded as they are
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem())
	case reflect.Struct:
		object := map[string]any{}
		addFields(object, v)
		return object
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	case reflect.Map:
		object := map[string]any{}
		for _, key := range v.MapKeys() {
			object[key.String()] = plain(v.MapIndex(key))
		}
		return object
	}
	return v.Interface()
}

// addFields adds the exported fields of a struct to an object. As in encoding/json, the fields of an
// embedded struct belong to the object, and a field of the outer struct replaces an embedded one.
func addFields(object map[string]any, v reflect.Value) {
	of := v.Type()
	for _, embedded := range []bool{true, false} {
		for i := range of.NumField() {
			f := of.Field(i)
			if f.Anonymous != embedded || f.Type.Kind() == reflect.Func || f.Type == reflect.TypeFor[[]byte]() {
				continue
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && f.Type.Kind() == reflect.Struct && name == "":
				addFields(object, v.Field(i))
			case !f.IsExported() || name == "-" || strings.Contains(options, "omit") && v.Field(i).IsZero():
			case name != "":
				object[name] = plain(v.Field(i))
			default:
				object[smallFirst(f.Name)] = plain(v.Field(i))
			}
		}
	}
}

// smallFirst returns a name that begins with a small letter. An abbreviation at its start, such as ID,
// becomes small as a whole.
func smallFirst(name string) string {
	letters := []rune(name)
	for i, r := range letters {
		if !unicode.IsUpper(r) || i > 0 && i+1 < len(letters) && !unicode.IsUpper(letters[i+1]) {
			break
		}
		letters[i] = unicode.ToLower(r)
	}
	return string(letters)
}

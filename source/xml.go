package source

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxXMLDepth is the maximum nesting of elements.
const maxXMLDepth = 256

// checkXML returns an error if body is not exactly one well-formed XML document in UTF-8 without a
// document type declaration. Its time and memory are proportional to the length of body: no entity is
// expanded, and the nesting is bounded.
func checkXML(body []byte) error {
	d := xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, []byte("\ufeff"))))
	d.CharsetReader = func(charset string, _ io.Reader) (io.Reader, error) {
		return nil, fmt.Errorf("the encoding %q can't be checked; remove the setting wellFormed of the facet", charset)
	}
	depth, roots := 0, 0
	for {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF) && roots == 0:
			return errors.New("not well-formed XML: there is no element")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("not well-formed XML: %w", err)
		}
		switch t := token.(type) {
		case xml.Directive:
			return errors.New("the XML has a document type declaration, which could declare entities")
		case xml.StartElement:
			if depth++; depth == 1 {
				roots++
			}
			if depth > maxXMLDepth {
				return fmt.Errorf("the XML is nested more than %d levels deep", maxXMLDepth)
			}
			if roots > 1 {
				return errors.New("not well-formed XML: there is a second root element")
			}
			if name := duplicateAttribute(t.Attr); name != "" {
				return fmt.Errorf("not well-formed XML: the element %s has the attribute %s twice", t.Name.Local, name)
			}
		case xml.EndElement:
			depth--
		case xml.CharData:
			if depth == 0 && strings.Trim(string(t), " \t\r\n") != "" {
				return errors.New("not well-formed XML: there is text outside of the root element")
			}
		}
	}
}

// duplicateAttribute returns the name of an attribute that occurs twice, or "".
func duplicateAttribute(attributes []xml.Attr) string {
	if len(attributes) < 2 {
		return ""
	}
	seen := make(map[xml.Name]bool, len(attributes))
	for _, a := range attributes {
		if seen[a.Name] {
			return a.Name.Local
		}
		seen[a.Name] = true
	}
	return ""
}

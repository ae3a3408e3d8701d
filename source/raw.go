package source

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"strings"
)

// Raw makes the content of a facet the bytes of its one document. They are stored and served unchanged,
// with their own media type, and not as a member of a JSON object.
type Raw struct {
	// MediaType is the media type with which the content is served, such as application/xml. It is also
	// the Accept header of the calls.
	MediaType string `yaml:"mediaType"`
	// WellFormed is the syntax that a response must have. Without it, the syntax is not checked. XML must
	// be UTF-8 and must have no document type declaration, because that could declare entities.
	WellFormed string `yaml:"wellFormed,omitempty" enum:"xml,json"`
	// Must is a text that a response must contain. A response without it is bad content.
	Must string `yaml:"must,omitempty"`
	// MustNot is a text that a response must not contain, in upper or lower case.
	MustNot string `yaml:"mustNot,omitempty"`
}

// The values of Raw.WellFormed. An empty value checks no syntax.
const wellFormedXML, wellFormedJSON = "xml", "json"

// MediaType returns the media type of the facet's content. It is empty for a facet without raw, whose
// content is a JSON object of its documents.
func (f Facet) MediaType() string {
	if f.Raw == nil {
		return ""
	}
	return f.Raw.MediaType
}

// checkSettings returns an error for a setting that is invalid or contradicts the facet's other settings.
func (r *Raw) checkSettings(f Facet) error {
	kind, _, err := mime.ParseMediaType(r.MediaType)
	top, sub, _ := strings.Cut(kind, "/")
	switch {
	case err != nil || sub == "" || strings.Contains(kind, "*") || strings.ContainsFunc(r.MediaType, isControl):
		return fmt.Errorf("mediaType: %q is not a media type, such as application/xml", r.MediaType)
	case top == "multipart" || top == "message":
		return fmt.Errorf("mediaType: %q has parts; choose the media type of one document, such as application/xml", r.MediaType)
	case r.WellFormed != "" && r.WellFormed != wellFormedXML && r.WellFormed != wellFormedJSON:
		return fmt.Errorf("wellFormed: %q must be %s or %s; to disable the check of the syntax, remove the setting", r.WellFormed, wellFormedXML, wellFormedJSON)
	case len(f.Documents) > 1:
		return errors.New("the content of a raw facet is one document; remove the other documents")
	case len(f.Select) > 0 || len(f.Ignore) > 0:
		return errors.New("the content of a raw facet is stored unchanged; remove `select` and `ignore`")
	}
	for _, d := range f.Documents {
		if d.Paging != nil {
			return errors.New("the pages of a raw facet cannot be joined; remove `paging`")
		}
	}
	return nil
}

// isHTML reports whether a media type is that of an HTML page.
func isHTML(mediaType string) bool {
	kind, _, _ := mime.ParseMediaType(mediaType)
	return kind == "text/html" || kind == "application/xhtml+xml"
}

// Check returns an error if a body is not valid content of the facet. The parameter `contentType` is
// the media type that the upstream names; empty means that it names none. The same rules apply to
// responses and files.
func (r *Raw) Check(body []byte, contentType string) error {
	switch {
	case len(body) == 0:
		return errors.New("the body is empty")
	case isHTML(contentType) && !isHTML(r.MediaType):
		return errors.New("the body is an HTML page")
	case r.Must != "" && !bytes.Contains(body, []byte(r.Must)):
		return fmt.Errorf("the body does not contain %q (raw.must)", r.Must)
	case r.MustNot != "" && bytes.Contains(bytes.ToLower(body), bytes.ToLower([]byte(r.MustNot))):
		return fmt.Errorf("the body contains %q (raw.mustNot)", r.MustNot)
	}
	switch r.WellFormed {
	case wellFormedXML:
		return checkXML(body)
	case wellFormedJSON:
		return checkJSON(body)
	}
	return nil
}

// readRaw classifies the response of a raw facet's document. The content is the decompressed body. A
// body with a credential of the source is bad content, because a part of it cannot be replaced.
func (r responseReader) readRaw(p *Plan) Outcome {
	o := r.classify(p.validator != Validator{})
	if o.Class != OK {
		return o
	}
	body := r.w.plain.Bytes()
	err := p.facet.Raw.Check(body, r.response.header.Get("Content-Type"))
	if err == nil && r.s.credentials.containsCredential(body) {
		err = errors.New("the body contains a credential of the source; raw content cannot be redacted")
	}
	if err != nil {
		return r.badContent(err)
	}
	r.w.canonical.out = append(r.w.canonical.out[:0], body...)
	return o
}

package schemas

import (
	"encoding/json"
	"net/url"
	"strings"
)

// access lists the security requirements of an operation. A request must meet one requirement. The
// list is empty if the document has no security schemes.
func (p *pager) access(o *operation) []accessView {
	if len(p.Components.SecuritySchemes) == 0 {
		return nil
	}
	needs := p.Security
	if o.Security != nil {
		needs = *o.Security
	}
	if len(needs) == 0 {
		needs = []requirement{{}}
	}
	var options []accessView
	for _, need := range needs {
		option := make(accessView, len(need))
		for i, e := range need {
			find(p, p.Components.SecuritySchemes, "securitySchemes", "#/components/securitySchemes/"+e.Name)
			option[i].Name, option[i].Href, option[i].Scopes = e.Name, "#auth-"+slug(e.Name), e.Value
		}
		options = append(options, option)
	}
	return options
}

// schemeOf returns the description of a security scheme for the page: how a client authenticates
// with it.
func schemeOf(name string, s securityScheme) schemeView {
	v := schemeView{Anchor: "auth-" + slug(name), Name: name, Text: texts(s.Description)}
	headers, options := credential(s)
	switch s.Type {
	case "http":
		v.How = "HTTP authentication, " + s.Scheme
		if s.BearerFormat != "" {
			v.How += " (" + s.BearerFormat + ")"
		}
	case "apiKey":
		v.How = "A key in the " + s.In + " " + s.Name
	case "oauth2":
		v.How = "OAuth 2"
	case "openIdConnect":
		v.How = "OpenID Connect, " + s.OpenIDConnectURL
	case "mutualTLS":
		v.How = "A certificate of the client's"
	default:
		v.How = s.Type
	}
	for _, flow := range s.Flows {
		v.How += ", " + strings.Join(strings.Fields(flow.Name+" "+flow.Value.AuthorizationURL+" "+flow.Value.TokenURL), " ")
		v.Scopes = append(v.Scopes, flow.Value.Scopes...)
	}
	v.Code = strings.Join(append(headers, options...), "\n")
	return v
}

// credential returns how curl sends a scheme's credential: as a header, or with other curl options.
// The secret itself comes from a variable of the shell.
func credential(s securityScheme) (header, options []string) {
	switch {
	case s.Type == "http" && strings.EqualFold(s.Scheme, "basic"):
		return nil, []string{`-u "$FRESHET_USER:$FRESHET_PASSWORD"`}
	case s.Type == "http" && !strings.EqualFold(s.Scheme, "bearer"):
		return []string{"Authorization: " + s.Scheme + " $FRESHET_TOKEN"}, nil
	case s.Type == "http" || s.Type == "oauth2" || s.Type == "openIdConnect":
		return []string{"Authorization: Bearer $FRESHET_TOKEN"}, nil
	case s.Type == "apiKey" && s.In == "header":
		return []string{s.Name + ": $FRESHET_TOKEN"}, nil
	case s.Type == "apiKey" && s.In == "cookie":
		return nil, []string{`-b "` + s.Name + `=$FRESHET_TOKEN"`}
	case s.Type == "apiKey" && s.In == "query":
		return nil, []string{`--url-query "` + s.Name + `=$FRESHET_TOKEN"`}
	case s.Type == "mutualTLS":
		return nil, []string{`--cert "$FRESHET_CERT" --key "$FRESHET_KEY"`}
	}
	return nil, nil
}

// curl returns the curl command that makes the operation's example request, quoted for a shell.
func (p *pager) curl(v operationView, parameters []parameter, body requestBody, stream bool) string {
	words := []string{"curl -i"}
	if stream {
		words[0] = "curl -iN" // -N: curl prints the output unbuffered
	}
	switch v.Method {
	case "GET":
	case "HEAD":
		words[0] = "curl -I"
	default:
		words[0] += " -X " + v.Method
	}
	target := v.Path
	if len(p.Servers) > 0 {
		target = strings.TrimSuffix(p.Servers[0].URL, "/") + target
	}
	var query, headers []string
	for _, of := range parameters {
		value := p.exampleOf(of)
		switch {
		case of.In == "path":
			target = strings.ReplaceAll(target, "{"+of.Name+"}", pathEscape(value))
		case !of.Required:
		case of.In == "query":
			values := []string{value}
			if list := []string(nil); json.Unmarshal([]byte(value), &list) == nil {
				values = list // the parameter occurs once for each value
			}
			for _, value := range values {
				query = append(query, url.QueryEscape(of.Name)+"="+url.QueryEscape(value))
			}
		case of.In == "header":
			headers = append(headers, "-H "+quote(of.Name+": "+value))
		case of.In == "cookie":
			headers = append(headers, "-b "+quote(of.Name+"="+value))
		}
	}
	if len(query) > 0 {
		target += "?" + strings.Join(query, "&")
	}
	words = append(words, quote(target))
	if len(v.Access) > 0 {
		for _, scheme := range v.Access[0] {
			s := find(p, p.Components.SecuritySchemes, "securitySchemes", "#/components/securitySchemes/"+scheme.Name)
			header, options := credential(s)
			for _, h := range header {
				words = append(words, `-H "`+h+`"`)
			}
			words = append(words, options...)
		}
	}
	words = append(words, headers...)
	if len(body.Content) > 0 {
		m := body.Content[0]
		value := m.Value.Example
		for _, e := range m.Value.Examples {
			if value == nil {
				value = p.exampled(e.Value).Value
			}
		}
		if value == nil && m.Value.Schema != nil {
			value = p.exampleOfSchema(m.Value.Schema)
		}
		switch {
		case value != nil:
			words = append(words, "-H "+quote("Content-Type: "+m.Name), "-d "+quote(value.String()))
		case body.Required:
			words = append(words, "-H "+quote("Content-Type: "+m.Name), "--data-binary @body")
		}
	}
	var b strings.Builder
	width := 0
	for i, word := range words {
		switch {
		case i == 0:
		case i == 1 || width+len(word) < 74:
			b.WriteByte(' ')
		default:
			b.WriteString(" \\\n  ")
			width = 2
		}
		b.WriteString(word)
		width += len(word) + 1
	}
	return b.String()
}

// exampleOf returns the document's example of a parameter, or the parameter's name in capitals.
func (p *pager) exampleOf(of parameter) string {
	value := of.Example
	for _, e := range of.Examples {
		if value == nil {
			value = p.exampled(e.Value).Value
		}
	}
	if value == nil && of.Schema != nil {
		value = p.exampleOfSchema(of.Schema)
	}
	if value == nil {
		return strings.ToUpper(of.Name)
	}
	return value.String()
}

func (p *pager) exampled(e namedExample) namedExample {
	if e.Ref != "" {
		return find(p, p.Components.Examples, "examples", e.Ref)
	}
	return e
}

func (p *pager) exampleOfSchema(s *schema) *literal {
	if s.Ref != "" {
		found := find(p, p.Components.Schemas, "schemas", s.Ref)
		s = &found
	}
	switch {
	case s.Example != nil:
		return s.Example
	case len(s.Examples) > 0:
		return &s.Examples[0]
	case s.Const != nil:
		return s.Const
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return &s.Enum[0]
	}
	return nil
}

// quote quotes a word for the shell.
func quote(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:%@=") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

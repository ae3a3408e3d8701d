package access

import "testing"

func TestSees_AllowsPublicAndNamedVisibilities(t *testing.T) {
	for _, c := range []struct {
		scopes []Scope
		sees   map[string]bool
	}{
		{nil, map[string]bool{"": true, "a": false, "admin": false, "read": false}},
		{[]Scope{Read, Refresh}, map[string]bool{"": true, "a": false, "read": false, "see:a": false}},
		{[]Scope{Read, See("a"), See("c")}, map[string]bool{"": true, "a": true, "b": false, "c": true, "A": false, "aa": false}},
		{[]Scope{See("admin")}, map[string]bool{"": true, "admin": true, "a": false}},
		{[]Scope{Admin}, map[string]bool{"": true, "a": true}},
	} {
		client := Client{Scopes: c.scopes}
		for visibility, want := range c.sees {
			if client.Sees(visibility) != want {
				t.Errorf("%v and %q: %v", c.scopes, visibility, !want)
			}
		}
		if client.May(Admin) != (len(c.scopes) == 1 && c.scopes[0] == Admin) {
			t.Errorf("%v: got admin, want not", c.scopes)
		}
	}
}

func TestMay_InspectAllowsNothingElse(t *testing.T) {
	inspector := Client{Scopes: []Scope{Inspect}}
	if !Inspect.known() || !inspector.May(Inspect) {
		t.Error("got an unknown scope")
	}
	for _, s := range []Scope{Read, Refresh, Admin, See("a")} {
		if inspector.May(s) {
			t.Errorf("inspect: got the scope %s, want not", s)
		}
	}
	if (Client{Scopes: []Scope{Read, Refresh}}).May(Inspect) || !(Client{Scopes: []Scope{Admin}}).May(Inspect) {
		t.Error("read includes inspect, or admin does not")
	}
}

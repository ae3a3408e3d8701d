package contract

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// court is a site like a court's case search. For all callers together it allows 40 calls in any
// minute, 3 calls in flight, and one call every 600 ms. Refused calls count for the interval of
// 600 ms too. A refusal is a page of HTML with status 200.
//
// Responses set one cookie for a year (WMONID) and one for a session (JSESSIONID). With the switch
// SessionExpiry, sessions expire. A call of an expired session gets the same HTML page as a refused
// call, and a new JSESSIONID. Speed shortens the minute; with a Speed above 2.5 the
// minimum interval is the stricter limit.
//
// A path below /ui/ is an XML document, which never changes.
func court(m *policyMaker) contract {
	inFlight := m.concurrency("in-flight", 3)
	interval := m.minInterval("interval", 600*time.Millisecond)
	minute := m.window(sliding, "minute", requests, 40, time.Minute)
	calls := make(map[string]int) // number of calls of each valid session, by session ID
	page := func() reply { return text(http.StatusOK, htmlType, htmlPage) }
	setSession := func(rep reply) {
		id := fmt.Sprintf("%016X", m.rng.Uint64())
		calls[id] = 0
		rep.header.Add("Set-Cookie", "JSESSIONID="+id+"; Path=/; HttpOnly")
	}
	return contract{
		charges: func(*call) []charge {
			return []charge{{policy: inFlight, cost: 1}, {policy: interval, cost: 1}, {policy: minute, cost: 1}}
		},
		refuse: func(*call, *decision) reply { return page() },
		respond: func(c *call, v *decision) reply {
			rep := document(http.StatusOK, m.content(c))
			if strings.HasPrefix(c.URL.Path, "/ui/") {
				rep = text(http.StatusOK, xmlType, layout(m.content(c)))
			}
			session, err := c.Cookie("JSESSIONID")
			known := false
			if err == nil {
				_, known = calls[session.Value]
			}
			switch maxCalls := m.switches[SessionExpiry]; {
			case err == nil && (!known || maxCalls > 0 && float64(calls[session.Value]) >= maxCalls):
				delete(calls, session.Value)
				rep = page()
				setSession(rep)
			case err == nil:
				calls[session.Value]++
			default:
				setSession(rep)
			}
			if _, err := c.Cookie("WMONID"); err != nil {
				rep.header.Add("Set-Cookie", fmt.Sprintf("WMONID=%011X; Path=/; Expires=%s", m.rng.Uint64()>>20, v.at.AddDate(1, 0, 0).UTC().Format(http.TimeFormat)))
			}
			return rep
		},
	}
}

const xmlType = "application/xml"

// layout returns the XML document of a user interface. Its path is escaped, because it may contain any
// character.
func layout(content object) string {
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<w2:layout xmlns:w2="http://www.inswave.com/websquare" path=%q value=%q>%s</w2:layout>
`, url.QueryEscape(content["path"].(string)), content["value"], strings.Repeat("<w2:row><w2:column width=\"120\"/></w2:row>", 100))
}

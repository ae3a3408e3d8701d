package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// riotIDs is the path of the method that returns the puuid of a Riot ID. In a call, the name and the
// tag of the ID follow this path.
const riotIDs = "/riot/account/v1/accounts/by-riot-id/"

// riot is Riot's API with a development key. Its limits, in fixed windows, are:
//
//	per key and region (first label of the host)      20 calls in 1 s, 100 in 120 s
//	per key, region and method                        30 calls in 10 s
//
// A method is the path without its last segment, or without name and tag. Speed shortens the windows of
// 120 s and 10 s.
// With the switch SharedRefusal, an internal service of the API refuses calls without Retry-After.
func riot(m *policyMaker) contract {
	app := []*policy{
		m.window(fixed, "application-1s", requests, 20, time.Second),
		m.window(fixed, "application-120s", requests, 100, 2*time.Minute),
	}
	method := []*policy{m.window(fixed, "method", requests, 30, 10*time.Second)}
	refuse := func(kind string) reply {
		rep := document(http.StatusTooManyRequests, object{"status": object{"message": "Rate limit exceeded", "status_code": 429}})
		rep.header.Set("X-Rate-Limit-Type", kind)
		return rep
	}
	return contract{
		charges: func(c *call) []charge {
			key := c.Header.Get("X-Riot-Token")
			if key == "" {
				return nil
			}
			region, _, _ := strings.Cut(c.Host, ".")
			scope := owner(key) + " " + region
			path := c.URL.Path[:strings.LastIndexByte(c.URL.Path, '/')]
			if strings.HasPrefix(c.URL.Path, riotIDs) {
				path = riotIDs
			}
			return []charge{
				{policy: app[0], scope: scope, cost: 1},
				{policy: app[1], scope: scope, cost: 1},
				{policy: method[0], scope: scope + " " + path, cost: 1},
			}
		},
		setHeaders: func(h http.Header, v *decision) {
			for name, policies := range map[string][]*policy{"X-App-Rate-Limit": app, "X-Method-Rate-Limit": method} {
				var limits, counts []string
				for _, p := range policies {
					limits = append(limits, fmt.Sprintf("%v:%d", p.limit, seconds(p.window)))
					counts = append(counts, fmt.Sprintf("%v:%d", v.state(p).used(), seconds(p.window)))
				}
				setHeader(h, name, strings.Join(limits, ","))
				setHeader(h, name+"-Count", strings.Join(counts, ","))
			}
		},
		refuse: func(_ *call, v *decision) reply {
			kind := "application"
			if v.refusedBy.policy == method[0] {
				kind = "method"
			}
			rep := refuse(kind)
			rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
			return rep
		},
		respond: func(c *call, v *decision) reply {
			switch {
			case len(v.states) == 0:
				rep := document(http.StatusUnauthorized, object{"status": object{"message": "The key is missing.", "status_code": 401}})
				rep.noHeaders = true
				return rep
			case m.hits(SharedRefusal):
				return refuse("service")
			}
			if id, found := strings.CutPrefix(c.URL.Path, riotIDs); found {
				name, tag, _ := strings.Cut(id, "/")
				return document(http.StatusOK, object{"puuid": m.content(c)["value"], "gameName": name, "tagLine": tag})
			}
			return document(http.StatusOK, m.content(c))
		},
	}
}

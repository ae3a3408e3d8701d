package contract

import (
	"net/http"
	"time"
)

// korea is the offset of Korea's time zone, which has no daylight saving time.
const korea = 9 * time.Hour

// nexonService is Nexon's Open API with keys for published applications (Nexon's "service stage").
// It allows each application 500 calls in any second and 20,000,000 in a calendar day in Korea.
// No header reports the quota, and refused calls are charged. Options.Speed shortens the day.
func nexonService(m *policyMaker) contract { return nexon(m, 500, 20_000_000) }

// nexonDevelopment is Nexon's Open API with keys for applications in development ("development
// stage"). It allows 5 calls a second and 1,000 a day.
func nexonDevelopment(m *policyMaker) contract { return nexon(m, 5, 1_000) }

func nexon(m *policyMaker, second, day float64) contract {
	perSecond, perDay := m.window(sliding, "second", requests, second, time.Second), m.day("day", day, korea)
	perSecond.strict, perDay.strict = true, true
	return contract{
		charges: func(c *call) []charge {
			key := c.Header.Get("X-Nxopen-Api-Key")
			if key == "" {
				return nil
			}
			return []charge{{policy: perSecond, scope: owner(key), cost: 1}, {policy: perDay, scope: owner(key), cost: 1}}
		},
		refuse: func(*call, *decision) reply {
			return nexonError(http.StatusTooManyRequests, "OPENAPI00007", "Please try again later")
		},
		respond: func(c *call, v *decision) reply {
			if len(v.states) == 0 {
				return nexonError(http.StatusBadRequest, "OPENAPI00005", "The apikey is not valid.")
			}
			there := v.at.In(time.FixedZone("KST", int(korea.Seconds())))
			switch date := c.URL.Query().Get("date"); {
			case date != "" && date >= there.Format(time.DateOnly):
				return nexonError(http.StatusBadRequest, "OPENAPI00004", "Please input valid parameter")
			case m.switches[NotReady] > 0 && there.Hour() < 2 && date == there.AddDate(0, 0, -1).Format(time.DateOnly):
				return nexonError(http.StatusBadRequest, "OPENAPI00009", "The data is being prepared.")
			}
			body := m.content(c)
			if c.URL.Query().Has("character_name") {
				return document(http.StatusOK, object{"ocid": body["value"]})
			}
			body["date"] = nil
			return document(http.StatusOK, body)
		},
	}
}

func nexonError(status int, name, message string) reply {
	return document(status, object{"error": object{"name": name, "message": message}})
}

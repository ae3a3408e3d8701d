package contract

import (
	"fmt"
	"net/http"
	"time"
)

// dataGoKr is Korea's public data portal. A serviceKey, a query parameter, is limited to 30
// calls in any second and 10,000 in a calendar day in Korea. No header reports the quota, and every
// error is an XML document with status 200. Speed shortens the day.
func dataGoKr(m *policyMaker) contract {
	perSecond := m.window(sliding, "second", requests, 30, time.Second)
	perDay := m.day("day", 10_000, korea)
	key := func(c *call) string { return owner(c.URL.Query().Get("serviceKey")) }
	return contract{
		charges: func(c *call) []charge {
			if key(c) == "" {
				return nil
			}
			return []charge{{policy: perDay, scope: key(c), cost: 1}, {policy: perSecond, scope: key(c), cost: 1}}
		},
		refuse: func(_ *call, v *decision) reply {
			if v.refusedBy.policy == perDay {
				return openAPIError(22, "LIMITED_NUMBER_OF_SERVICE_REQUESTS_EXCEEDS_ERROR")
			}
			return openAPIError(23, "LIMITED_NUMBER_OF_SERVICE_REQUESTS_PER_SECOND_EXCEEDS_ERROR")
		},
		respond: func(c *call, v *decision) reply {
			if len(v.states) == 0 {
				return openAPIError(30, "SERVICE_KEY_IS_NOT_REGISTERED_ERROR")
			}
			return document(http.StatusOK, m.content(c))
		},
	}
}

func openAPIError(code int, message string) reply {
	return text(http.StatusOK, "text/xml;charset=UTF-8", fmt.Sprintf(
		"<OpenAPI_ServiceResponse><cmmMsgHeader><errMsg>SERVICE ERROR</errMsg><returnAuthMsg>%s</returnAuthMsg><returnReasonCode>%d</returnReasonCode></cmmMsgHeader></OpenAPI_ServiceResponse>",
		message, code))
}

package contract

import (
	"encoding/json"
	"net/http"
	"time"
)

// openai is OpenAI's API. It has buckets of 500 requests and 30,000 tokens for each
// organisation and model; an empty bucket is full again after a minute. A call takes one token for
// every four bytes of its body, plus max_tokens (default 256). The unused tokens are refunded when
// the response is written. Speed multiplies the restore rate.
func openai(m *policyMaker) contract {
	requestBucket := m.bucket("requests", requests, 500, 500.0/60)
	tokenBucket := m.bucket("tokens", tokens, 30_000, 500)
	return contract{
		charges: func(c *call) []charge {
			organisation := owner(credential(c))
			if organisation == "" {
				return nil
			}
			p := readPrompt(c.body)
			scope := organisation + " " + p.Model
			return []charge{{policy: requestBucket, scope: scope, cost: 1}, {policy: tokenBucket, scope: scope, cost: p.prompt + p.maxTokens()}}
		},
		setHeaders: func(h http.Header, v *decision) {
			for _, p := range []*policy{requestBucket, tokenBucket} {
				s := v.state(p)
				setHeader(h, "x-ratelimit-limit-"+p.name, number(p.limit))
				setHeader(h, "x-ratelimit-remaining-"+p.name, number(float64(int(s.remaining))))
				setHeader(h, "x-ratelimit-reset-"+p.name, inMilliseconds(s.reset.Sub(v.at)))
			}
		},
		refuse: func(_ *call, v *decision) reply {
			return document(http.StatusTooManyRequests, object{"error": object{
				"message": "Rate limit reached", "type": v.refusedBy.policy.name, "param": nil, "code": "rate_limit_exceeded",
			}})
		},
		respond: func(c *call, v *decision) reply {
			if len(v.states) == 0 {
				return document(http.StatusUnauthorized, object{"error": object{"message": "The API key is missing.", "code": "invalid_api_key"}})
			}
			p := readPrompt(c.body)
			completion := float64(int(p.maxTokens() / 2))
			body := m.content(c)
			body["model"] = p.Model
			body["usage"] = object{"prompt_tokens": p.prompt, "completion_tokens": completion, "total_tokens": p.prompt + completion}
			rep := document(http.StatusOK, body)
			rep.charges = []charge{{policy: tokenBucket, scope: owner(credential(c)) + " " + p.Model, cost: completion - p.maxTokens()}}
			return rep
		},
	}
}

// prompt is the body of a request.
type prompt struct {
	Model               string   `json:"model"`
	MaxTokens           *float64 `json:"max_tokens"`
	MaxCompletionTokens *float64 `json:"max_completion_tokens"`
	prompt              float64
}

// readPrompt parses the body of a request. For an invalid body it returns a prompt without a
// model.
func readPrompt(body []byte) prompt {
	var p prompt
	if json.Unmarshal(body, &p) != nil {
		p = prompt{}
	}
	p.prompt = float64((len(body) + 3) / 4)
	return p
}

// maxTokens returns the maximum number of tokens of the completion.
func (p prompt) maxTokens() float64 {
	for _, limit := range []*float64{p.MaxCompletionTokens, p.MaxTokens} {
		if limit != nil {
			return max(0, *limit)
		}
	}
	return 256
}

// inMilliseconds formats a duration, rounded up to milliseconds, as Go does: 120ms, 6m0s.
func inMilliseconds(d time.Duration) string {
	return max(0, (d + time.Millisecond - 1).Truncate(time.Millisecond)).String()
}

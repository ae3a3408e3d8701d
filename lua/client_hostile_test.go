package lua_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// hostileClient sends requests above its limit, repeated requests and malformed requests. It
// releases ended requests, unknown requests and requests of the honest client.
type hostileClient struct {
	*clients
	rng *rand.Rand
	// others are the requests of the honest client.
	others []string
	sent   int
}

func (h *hostileClient) act() {
	garbage := []string{"", " ", "\x00\xff", "nan", "1e999 a", strings.Repeat("x", 4096), "9007199254740993 a"}
	pick := func(all []string) string { return all[h.rng.IntN(len(all))] }
	switch h.rng.IntN(6) {
	case 0:
		h.admit("hostile", requests("K", h.sent, h.sent+40)...)
		h.sent += 40
	case 1:
		same := fmt.Sprintf("N%d character/a", h.rng.IntN(h.sent+1))
		h.admit("hostile", same, same, same)
	case 2:
		h.admit("hostile", "N"+pick(garbage), "K"+pick(h.others))
	case 3:
		some := fmt.Sprintf("%d character/a", h.rng.IntN(h.sent+1))
		h.release("hostile", some, some)
		h.release("hostile", some)
	case 4:
		h.release("hostile", h.others...)
	default:
		h.release("hostile", pick(garbage), pick(garbage))
	}
}

// The honest client keeps its exact count of requests and its share, with any input of the hostile
// client. The hostile client never exceeds its own share.
func TestClientScripts_IsolateAHostileClient(t *testing.T) {
	bound := clientBound{max: 20, min: 3, active: time.Minute, newKeys: 50, newKeyInterval: time.Hour}
	eachClients(t, bound, func(c *clients) {
		seed := rand.Uint64()
		h := &hostileClient{clients: c, rng: rand.New(rand.NewPCG(seed, 1)), others: []string{"0 character/a", "1 character/a", "2 character/a", "3 character/a"}}
		if got := c.admit("honest", requests("N", 0, 4)...); got.count(0) != 4 {
			c.t.Fatalf("seed %d: the honest client got %+v, want 4 admitted", seed, got)
		}
		count := func(id string) int64 {
			n, err := c.rdb.ZCard(c.t.Context(), c.key+":"+id).Result()
			if err != nil {
				c.t.Fatal(err)
			}
			return n
		}
		for range 300 {
			h.act()
			if got := count("honest"); got != 4 {
				c.t.Fatalf("seed %d: the honest client has %d requests outstanding, want 4", seed, got)
			}
			if got := count("hostile"); got > int64(bound.max/2) {
				c.t.Fatalf("seed %d: the hostile client has %d requests outstanding, want at most its share of %d", seed, got, bound.max/2)
			}
		}
		got := c.admit("honest", requests("N", 4, 20)...)
		if got.share != int64(bound.max/2) || got.count(0) != bound.max/2-4 {
			c.t.Errorf("seed %d: the honest client got %+v, want the rest of its half", seed, got)
		}
		if n := c.release("honest", h.others...); n != 4 {
			c.t.Errorf("seed %d: the honest client released %d requests, want its 4", seed, n)
		}
	})
}

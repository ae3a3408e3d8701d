//go:build unix

package lua_test

import (
	"testing"

	"github.com/freshet/freshet/servicetest"
)

// What a failover costs is not only the model's: the scripts go the same way to it,
// where the hash is put back by hand and where a real replica takes over.
func TestTheScriptsLoseByAFailoverWhatTheModelSays(t *testing.T) {
	for name, r := range map[string]rules{
		"a settled lock comes back": {noRows: true, noneBack: true},
		"a begin is forgotten":      {noRows: true, noneUnbegun: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := model{rules: r, most: 1, forgets: 1}
			found := searched(t, m)
			if found == nil {
				t.Fatal("nothing is lost")
			}
			eachRedis(t, func(e entity) {
				w := walk{e: e, m: m, real: map[number]int64{}}
				w.lose(found.steps)
			})
			t.Run("replica", func(t *testing.T) {
				s := servicetest.PrivateRedis(t)
				w := walk{e: newEntity(t, s.Client), m: m, real: map[number]int64{}}
				var replica *servicetest.RedisServer
				w.cutOff = func() {
					replica = s.Replica()
					replica.CutOff()
				}
				w.promote = func() {
					s.Kill()
					replica.Promote()
					w.e.rdb = replica.Client
				}
				w.lose(found.steps)
			})
		})
	}
}

// lose goes the way to a loss; the next request after the lock's life is served.
func (w *walk) lose(way []step) {
	var last string
	for _, st := range way {
		v, ok := w.take(st)
		if !ok {
			w.fatal("%v can't happen", st)
		}
		if st.kind == ask {
			last = v
		}
	}
	if last != "ALREADY_PROCESSING" || !w.s.quiet() || w.s.owed == 0 {
		w.fatal("the last request got %s", last)
	}
	// A settled lock is there for its life; the other one has gone with its fetch.
	if _, ok := w.take(step{kind: outlive}); ok != w.m.noneBack {
		w.fatal("there is a lock: %v", ok)
	}
	if v, _ := w.take(step{kind: ask, lane: lowLane}); v != "PUBLISHED" {
		w.fatal("the next request got %s", v)
	}
}

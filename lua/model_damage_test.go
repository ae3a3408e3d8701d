//go:build unix

package lua_test

import (
	"testing"

	"github.com/freshet/freshet/servicetest"
)

// After a failover, a lock that another server set can reappear. If such a lock covered a
// request, the request could be lost, so the scripts publish the request. The test runs once with
// a replaced hash and once with a real replica that is promoted.
func TestModel_ScriptsPublishAfterAFailover(t *testing.T) {
	for name, reads := range map[string]bool{"a settled lock comes back": false, "a begin is forgotten": true} {
		t.Run(name, func(t *testing.T) {
			m := model{rules: rules{noRows: true, noServer: true}, most: 1, forgets: 1, reads: reads}
			found := searched(t, m)
			if found == nil {
				t.Fatal("nothing is lost")
			}
			m.noServer, m.most = false, 2
			eachRedis(t, func(e entity) {
				w := walk{e: e, m: m, real: map[number]int64{}}
				w.served(found.steps)
			})
			t.Run("replica", func(t *testing.T) {
				s := servicetest.PrivateRedis(t)
				s.Replica() // connect a replica before the walk, because the first replica changes the primary's replication ID
				w := walk{e: newEntity(t, s.Client), m: m, real: map[number]int64{}}
				var replica *servicetest.RedisServer
				w.cutOff = func() {
					replica = s.Replica()
					replica.StopReplication()
				}
				w.promote = func() {
					s.Kill()
					replica.Promote()
					w.e.rdb = replica.Client
				}
				w.served(found.steps)
			})
		})
	}
}

// served runs steps that lose a request under the broken rule noServer: a lock covers a new request
// even if another Redis server set the lock. By our rules the last request of these steps must be
// published.
func (w *walk) served(path []step) {
	var last string
	for _, st := range path {
		v, ok := w.take(st)
		if !ok {
			w.fatal("%v can't happen", st)
		}
		if st.kind == enqueue {
			last = v
		}
	}
	if last != "PUBLISHED beside a lock of another server" {
		w.fatal("the last request got %s", last)
	}
}

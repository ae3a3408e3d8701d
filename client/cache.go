package client

import (
	"container/list"
	"encoding/json"
	"sync"
)

// cacheOverhead is the assumed memory of a cached snapshot in bytes, in addition to its content and
// its names.
const cacheOverhead = 400

// cache holds the snapshots that were read last, for conditional reads. It removes the least
// recently used snapshots if it needs more memory than `limit`.
type cache struct {
	limit int64

	mu     sync.Mutex
	used   int64
	byUse  *list.List // list of *cached elements; the most recently used element is first
	lookup map[Entity]*list.Element
}

type cached struct {
	entity Entity
	result Result[json.RawMessage]
	size   int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, byUse: list.New(), lookup: map[Entity]*list.Element{}}
}

// get returns the snapshot of an entity, or a Result without an ETag.
func (c *cache) get(e Entity) Result[json.RawMessage] {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.lookup[e]
	if !ok {
		return Result[json.RawMessage]{}
	}
	c.byUse.MoveToFront(at)
	return at.Value.(*cached).result
}

// put stores a snapshot. A snapshot above the limit is not stored.
func (c *cache) put(e Entity, result Result[json.RawMessage]) {
	result.Refresh = nil // the cached result answers later reads with status 304, and such a response has no refresh state
	size := int64(cap(result.Snapshot)+len(result.ETag)+len(e.Source)+len(e.Facet)+len(e.Key)) + cacheOverhead
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(e)
	if size > c.limit {
		return
	}
	c.lookup[e] = c.byUse.PushFront(&cached{e, result, size})
	c.used += size
	for c.used > c.limit {
		c.removeLocked(c.byUse.Back().Value.(*cached).entity)
	}
}

func (c *cache) remove(e Entity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(e)
}

// removeLocked removes a snapshot. The caller holds the lock.
func (c *cache) removeLocked(e Entity) {
	if at, ok := c.lookup[e]; ok {
		c.used -= at.Value.(*cached).size
		c.byUse.Remove(at)
		delete(c.lookup, e)
	}
}

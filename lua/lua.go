// Package lua holds every script that runs inside Redis, one file each, named
// owner_verb.lua, with its purpose, KEYS, ARGV, returns and atomicity at its
// head. The scripts are where the system is atomic across processes; nothing
// else decides who may fetch or when. They use only what every Redis has: no
// struct, cmsgpack or bit, no functions, and declared keys of one slot, so that they run
// on a cluster and on managed services alike.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
)

// Script is one script and the name Redis gives it.
type Script struct {
	Name   string // owner_verb
	Source string
	SHA1   string // what EVALSHA takes
}

func script(name, source string) Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	return Script{Name: name, Source: source, SHA1: hex.EncodeToString(sum[:])}
}

//go:embed coalesce_acquire.lua
var coalesceAcquire string

//go:embed coalesce_confirm.lua
var coalesceConfirm string

//go:embed coalesce_rollback.lua
var coalesceRollback string

//go:embed coalesce_inspect.lua
var coalesceInspect string

//go:embed client_admit.lua
var clientAdmit string

//go:embed client_release.lua
var clientRelease string

//go:embed request_peek.lua
var requestPeek string

//go:embed request_begin.lua
var requestBegin string

//go:embed request_settle.lua
var requestSettle string

//go:embed limiter_acquire.lua
var limiterAcquire string

//go:embed limiter_load.lua
var limiterLoad string

//go:embed limiter_slots.lua
var limiterSlots string

//go:embed limiter_buckets.lua
var limiterBuckets string

//go:embed limiter_grant.lua
var limiterGrant string

//go:embed limiter_save.lua
var limiterSave string

// The scripts. What they take and return stands at the head of each file.
var (
	CoalesceAcquire  = script("coalesce_acquire", coalesceAcquire)
	CoalesceConfirm  = script("coalesce_confirm", coalesceConfirm)
	CoalesceRollback = script("coalesce_rollback", coalesceRollback)
	CoalesceInspect  = script("coalesce_inspect", coalesceInspect)
	ClientAdmit      = script("client_admit", clientAdmit)
	ClientRelease    = script("client_release", clientRelease)
	RequestPeek      = script("request_peek", requestPeek)
	RequestBegin     = script("request_begin", requestBegin)
	RequestSettle    = script("request_settle", requestSettle)
	LimiterAcquire   = script("limiter_acquire", limiterAcquire+limiterLoad+limiterSlots+limiterBuckets+limiterGrant+limiterSave)
)

// All are all of them.
var All = []Script{CoalesceAcquire, CoalesceConfirm, CoalesceRollback, CoalesceInspect, ClientAdmit, ClientRelease, RequestPeek, RequestBegin, RequestSettle, LimiterAcquire}

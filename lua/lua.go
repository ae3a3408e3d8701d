// Package lua contains all scripts that run inside Redis. Each file is named owner_verb.lua and
// begins with its purpose, KEYS, ARGV, returns and atomicity. Only these scripts make decisions
// that must be atomic across processes: which requests are fetched, and when.
//
// The scripts run on clusters and managed services: they use no struct, cmsgpack or bit libraries
// and no Redis functions. Each script declares all its keys, and these share one hash slot.
//
//	client_admit, _release, _take    a client's limits
//	coalesce_acquire ... _rollback   the lock of an entity's update request
//	request_peek, _begin, _settle    the states of a request in a worker
//	limiter_*                        permits; the files are concatenated to one script
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"embed"
	"encoding/hex"
	"strings"
)

// Script is one script and its name in Redis.
type Script struct {
	Name   string // name of the form owner_verb, for example coalesce_acquire
	Source string
	SHA1   string // SHA-1 of the script's text, for the command EVALSHA
}

// NewScript returns the script with this text.
func NewScript(name, source string) Script {
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

//go:embed client_take.lua
var clientTake string

//go:embed request_peek.lua
var requestPeek string

//go:embed request_begin.lua
var requestBegin string

//go:embed request_settle.lua
var requestSettle string

//go:embed limiter_*.lua
var limiterFiles embed.FS

// limiterNames are the files of the script limiter_acquire in their order.
var limiterNames = []string{
	"acquire", "load", "breaker", "partitions", "window_log", "day", "events", "slots", "buckets",
	"unit_log", "leaky_bucket", "min_interval", "reported", "concurrency", "scope_breaker", "grant", "save",
}

// limiterSource returns the text of the script limiter_acquire.
func limiterSource() string {
	var source strings.Builder
	for _, name := range limiterNames {
		text, err := limiterFiles.ReadFile("limiter_" + name + ".lua")
		if err != nil {
			panic(err) // the file is part of the binary
		}
		source.Write(text)
	}
	return source.String()
}

// The scripts. The head of each file documents its arguments and results.
var (
	CoalesceAcquire  = NewScript("coalesce_acquire", coalesceAcquire)
	CoalesceConfirm  = NewScript("coalesce_confirm", coalesceConfirm)
	CoalesceRollback = NewScript("coalesce_rollback", coalesceRollback)
	CoalesceInspect  = NewScript("coalesce_inspect", coalesceInspect)
	ClientAdmit      = NewScript("client_admit", clientAdmit)
	ClientRelease    = NewScript("client_release", clientRelease)
	ClientTake       = NewScript("client_take", clientTake)
	RequestPeek      = NewScript("request_peek", requestPeek)
	RequestBegin     = NewScript("request_begin", requestBegin)
	RequestSettle    = NewScript("request_settle", requestSettle)
	LimiterAcquire   = NewScript("limiter_acquire", limiterSource())
)

// All contains every script.
var All = []Script{CoalesceAcquire, CoalesceConfirm, CoalesceRollback, CoalesceInspect, ClientAdmit, ClientRelease, ClientTake, RequestPeek, RequestBegin, RequestSettle, LimiterAcquire}

// Package settings changes the settings of sources while freshet runs: quotas, prefetching,
// and the emergency stop. No process has to be restarted.
//
// The configuration file gives the configured values. A change is stored in the database as an
// override, together with an audit entry, in one transaction. Limiters and schedulers read the
// override about once a second, so a change is in force within two seconds:
//
//	effective = configured + override
//
// Each change of a source creates the next revision of its override:
//
//	revision  request                                     override                 effective target
//	0         (never changed)                             {}                       450
//	1         PATCH {"policies":{"second":{"target":400}}}  {second: {target: 400}}  400
//	2         POST /sources/nexon/stop                    … and stopped            no calls
//	3         POST /sources/nexon/resume                  {second: {target: 400}}  400
//	4         PATCH {"policies":{"second":{"target":null}}} {}                       450
//
// A change is validated before it is stored: it fails with an InvalidError if the effective quota
// or a prefetch interval would be invalid. If a request has If-Match (ChangeRequest.Revision) and
// the current revision differs from it, the change fails with a ConflictError. Without If-Match, a
// change is retried if a concurrent change of the same source is stored first.
//
// A newer configuration may make a stored override invalid. State.Effective is then nil, and
// State.Problem says why. Limiters and schedulers that start with such an override use the
// configured values; a limiter that is already running keeps its quota. All limiters and schedulers
// still obey the emergency stop.
package settings

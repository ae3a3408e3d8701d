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
// A change is validated before it is stored: an invalid effective quota or interval is an
// InvalidError. With If-Match (ChangeRequest.Revision) a change applies to one revision only,
// otherwise it is a ConflictError. Without it, a change that conflicts with another is retried.
//
// A newer configuration may make a stored override invalid. State.Effective is then nil, and
// State.Problem says why. Limiters and schedulers that start use the configured values; a
// limiter that runs keeps its quota. All of them still obey the emergency stop.
package settings

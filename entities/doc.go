// Package entities manages the entities that are prefetched: it registers, enables, disables, pins,
// lists and counts them, and registers an entity when it is read. Its admin API also deletes a
// snapshot together with the registration. If the registration remained, the scheduler would fetch
// the entity again.
//
// A registered entity has these states:
//
//	state            set by                         effect
//	enabled          register, enable               the scheduler requests it when it is due
//	disabled         register, disable              it stays registered, but is not requested
//	pinned           register or pin with a tier    reads don't change its tier
//	unpinned         register without tier, unpin   its reads choose the tier
//
// Example: "register" with {"key":"somebody","tier":"hot"} registers the entity as pinned to hot
// and due within one hot interval. "unpin" keeps the tier hot until its reads change it.
package entities

// Package app reads the configuration and runs the roles of freshet: query service, worker,
// scheduler, and dev, which runs all roles in one process on embedded services. It is the only
// package that connects the other packages with each other.
//
// Each role is a function with a parameter of type parts, which holds the configuration, the
// connections and the logger. `connect` builds the parts on real services, and `startEmbedded` on
// embedded ones, so dev runs the same roles as a deployment. parts.run creates the Kafka client, the
// producer and the lag sampler, which all roles share.
//
// Shutdown has a fixed order: a role stops accepting work, waits for its work in flight, and only
// then stops its dependencies. For example, a worker stops consuming, stores the results of calls
// in flight and commits their offsets; then the limiters stop, and last the producer is flushed.
//
//	signal → foreground group (roles) stops → background group (limiters, producer, sampler) stops → exit
//
// An error of any function in a group cancels its group, and the process shuts down the same way.
package app

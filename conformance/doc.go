// Package conformance checks an SDK of the FireMQ protocol: it starts a broker, commands the SDK through
// a driver, and plays scenarios. docs/conformance.md is what authors of drivers read.
//
//	Run ---- a scenario at a time ---> scene ---> driver: a process, JSON lines
//	                                     |           | FireMQ protocol, any transport
//	                                     |           v
//	                                     |------> tap: a proxy that holds, adds and drops frames
//	                                     |           v
//	                                     '------> broker: the firemq binary, AMQP, HTTP
//
// A scene has its own vhost; its other side, where it needs one, speaks AMQP with a client library of
// others, so that no mistake of ours is on both sides.
package conformance

//go:build !linux || poll_opt

package loop

// newEngine has none to give: here gnet's event loops cannot be paused.
func newEngine(*Server) (engine, error) { return nil, nil }

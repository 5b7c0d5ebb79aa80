package mgmt

import (
	"fmt"
	"strconv"

	"github.com/firemq/firemq/broker"
)

// putLimits sets the limits of the alarms until the next start: {"memory": "1GB"}, {"memory_fraction": 0.4} of
// the machine's memory, {"disk_free": "50MB"}, {"disk_free_fraction": 1.0}; or it raises an alarm in spite of them,
// {"memory_alarm": true}, {"disk_alarm": true}, until it is false again.
func putLimits(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	if r.s.opt.Control == nil {
		return badRequest("the limits of this broker cannot be changed")
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	var changes []func() error // once all of them are known to be good
	for key, change := range map[string]func(string, float64) error{"memory": r.s.opt.Control.SetMemoryLimit, "disk_free": r.s.opt.Control.SetDiskFreeLimit} {
		var size string
		var fraction float64
		switch v, share := b[key], b[key+"_fraction"]; {
		case v == nil && share == nil:
			continue
		case v != nil:
			if size = fmt.Sprint(v); size == "" {
				return badRequest(key + ": not a size such as 1000000, 512MB or 2GiB")
			}
		default:
			f, err := strconv.ParseFloat(fmt.Sprint(share), 64)
			if err != nil || !(f >= 0 && f <= 1000) {
				return badRequest(key + "_fraction is no number of 0 or more")
			}
			fraction = f
		}
		if err := r.s.opt.Control.CheckLimit(size, fraction); err != nil {
			return badRequest(key + ": " + err.Error())
		}
		changes = append(changes, func() error { return change(size, fraction) })
	}
	for key, which := range map[string]broker.Reason{"memory_alarm": broker.PauseMemory, "disk_alarm": broker.PauseDisk} {
		if b[key] == nil {
			continue
		}
		on, err := b.boolean(key, false)
		if err != nil {
			return err
		}
		changes = append(changes, func() error { r.s.opt.Control.ForceAlarm(which, on); return nil })
	}
	if changes == nil {
		return badRequest("[{key_missing,memory}]")
	}
	for _, change := range changes {
		if err := change(); err != nil {
			return badRequest(err.Error())
		}
	}
	return r.done(false)
}

// nodeActions carries out {"action": "suspend_listeners"}, "suspend", "resume" or "stop".
func nodeActions(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	control := r.s.opt.Control
	if control == nil {
		return badRequest("this broker cannot be told to do that")
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	switch action, _ := b["action"].(string); action {
	case "suspend_listeners", "suspend":
		control.Suspend(action == "suspend")
	case "resume":
		if err := control.Resume(); err != nil {
			return badRequest(err.Error())
		}
	case "stop":
		return r.stop(control)
	default:
		return badRequest("Unknown action: " + action)
	}
	return r.done(false)
}

// stop answers first: the end of the broker cuts connections off.
func (r *request) stop(control Control) error {
	stop, err := control.Stop()
	if err != nil {
		return badRequest(err.Error())
	}
	r.s.mu.Lock()
	r.socket().then = stop
	r.s.mu.Unlock()
	r.SetConnectionClose()
	return r.done(false)
}

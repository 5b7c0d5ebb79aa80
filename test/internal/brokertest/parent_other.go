//go:build !linux

package brokertest

import "syscall"

// dieWithParent is Linux's; elsewhere a test process that is killed leaves its brokers running.
func dieWithParent() *syscall.SysProcAttr { return nil }

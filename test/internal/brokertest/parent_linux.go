package brokertest

import "syscall"

// dieWithParent has the kernel kill the child when the test process dies, whatever ended it.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

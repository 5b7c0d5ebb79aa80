//go:build race

package leak

func init() { left["buffer"] = "1 buffers that are lent" }

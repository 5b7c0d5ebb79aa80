package ports

import (
	"fmt"
	"net"
	"testing"
)

// What Free gives is free, and beyond what clients get.
func TestFree(t *testing.T) {
	list, err := Free(50)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range list {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)) // fails for one that came twice
		if err != nil {
			t.Error(err)
			continue
		}
		defer l.Close()
		if port < first || port >= first+count {
			t.Errorf("port %d", port)
		}
	}
}

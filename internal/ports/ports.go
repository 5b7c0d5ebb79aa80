// Package ports finds free ports for programs that are told theirs: brokers that tests and comparisons start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports that no system gives to clients by itself. One of those may be taken by whoever connects somewhere, between the
// look and the program's start, or while it is started again.
const first, count = 20000, 10000

// Free gives n ports of the loopback address that were free a moment ago, all different.
func Free(n int) (list []int, err error) {
	for range 100 * n {
		port := first + rand.IntN(count)
		l, e := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if e != nil {
			err = e
			continue
		}
		defer l.Close() // no port comes twice
		if list = append(list, port); len(list) == n {
			return list, nil
		}
	}
	return nil, fmt.Errorf("find a free port: %w", err)
}

package mgmt

import "time"

// The bounds that tests go to.
const (
	MaxOfOne = maxOfOne
	MaxConns = maxConns

	GarbageBytes = garbageBytes
)

// ListenAt is Listen with other times for a header, a body and an answer.
func ListenAt(addr string, o Options, header, body, answer time.Duration) (*Server, error) {
	return listen(addr, o, pace{header: header, body: body, answer: answer, idle: usualPace.idle})
}

// Held is what requests hold of the budgets of bodies and answers now, in bytes.
func (s *Server) Held() (bodies, answers int64) { return s.bodies.all(), s.answers.all() }

func (b *budget) all() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.large != nil {
		return b.held + b.large.bytes
	}
	return b.held
}

// Connections are counted by the bounds.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Garbage is what finished requests have held since memory was last given back, in bytes.
func (s *Server) Garbage() int64 { return s.garbage.Load() }

// Endpoint is one method of one path of the API.
type Endpoint struct{ Method, Path string }

// AllEndpoints lists the API for the tests that must miss none of it.
func AllEndpoints() []Endpoint {
	var list []Endpoint
	for _, e := range endpoints() {
		for _, m := range [...]string{"GET", "PUT", "POST", "DELETE"} {
			if e.handler(m) != nil {
				list = append(list, Endpoint{m, e.path})
			}
		}
	}
	return list
}

// Serving are the connections whose requests are under way.
func (s *Server) Serving() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.stage == serving {
			n++
		}
	}
	return n
}

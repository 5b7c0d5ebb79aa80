package mgmt

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

package misspelt

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"memory", "memory", 0}, {"memroy", "memory", 2}, {"level", "levels", 1}, {"kitten", "sitting", 3}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestMeant(t *testing.T) {
	names := []string{"list", "purge", "bind", "unbind"}
	for name, want := range map[string]string{"lst": "list", "prgue": "purge", "list": "list", "unbnid": "unbind", "frobnicate": "", "x": "", "": ""} {
		if got, ok := Meant(name, names); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", name, got, ok, want)
		}
	}
	if got, ok := Meant("list", nil); ok {
		t.Errorf("none of no names: %q", got)
	}
}

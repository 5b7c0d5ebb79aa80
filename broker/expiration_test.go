package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/policy"
)

func TestParseExpiration(t *testing.T) {
	for _, c := range []struct {
		in  string
		ms  int64
		why string
	}{
		{"60000", 60000, ""},
		{"0", 0, ""},
		{"+5", 5, ""},
		{"-0", 0, ""},
		{"007", 7, ""},
		{"315360000000", policy.MaxTTL, ""},
		{"", 0, "no_integer"},
		{"abc", 0, "no_integer"},
		{" 5", 0, "no_integer"},
		{"-", 0, "no_integer"},
		{"10s", 0, `{leftover_string,"s"}`},
		{"1.5", 0, `{leftover_string,".5"}`},
		{"-1", 0, "{value_negative,-1}"},
		{"315360000001", 0, "{value_too_large,315360000001}"},
		{"99999999999999999999", 0, "{value_too_large,99999999999999999999}"},
		{"-99999999999999999999", 0, "{value_negative,-99999999999999999999}"},
	} {
		if ms, why := ParseExpiration([]byte(c.in)); ms != c.ms || why != c.why {
			t.Errorf("%q: got %d %q, want %d %q", c.in, ms, why, c.ms, c.why)
		}
	}
}

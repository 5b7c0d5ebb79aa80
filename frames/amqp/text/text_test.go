package text

import (
	"strings"
	"testing"
)

func TestLinesThatAreNone(t *testing.T) {
	for line, want := range map[string]string{
		``:                                      "no number",
		`x heartbeat`:                           "no number x",
		`1 no.method`:                           "unknown method no.method",
		`1 basic.ack tag=1`:                     "unknown field tag",
		`1 basic.ack delivery-tag`:              "want =",
		`1 basic.ack delivery-tag=x`:            "no number x",
		`1 body hello`:                          "no quoted string",
		`1 header sizes=1`:                      "unknown property sizes",
		`1 header headers={a=`:                  "want a value",
		`1 header headers={a=A[`:                "want a value",
		`1 header headers=[]`:                   "want {",
		`0 heartbeat more`:                      "left over",
		`1 basic.publish routing-key="q" "more`: "unknown field",
	} {
		if _, err := Append(nil, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

func TestEveryKindOfValueRoundTrips(t *testing.T) {
	const line = `1 header size=0 headers={t=t1 b=b-1 B=B255 s=s-2 u=u3 I=I-4 i=i5 l=l-6 L=L7 f=f0x3fc00000 d=d0x4000000000000000 D=D314/2 S=S"x y" x=x"\x00" A=A[l1 A[] F{}] T=T1700000000 F=F{in=V} V=V "a b"=V}`
	b, err := Append(nil, line)
	if err != nil {
		t.Fatal(err)
	}
	if got := FormatAll(append(b, 1, 2)); len(got) != 2 || got[0] != line || got[1] != `raw "\x01\x02"` {
		t.Errorf("got %s", strings.Join(got, "\n"))
	}
}

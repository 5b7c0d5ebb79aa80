package mgmt_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// uiGet asks for a file of the UI without credentials; the answer is not decompressed.
func uiGet(t *testing.T, url string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Body.Close() })
	return a
}

func TestUIFiles(t *testing.T) {
	c := start(t)
	files, err := os.ReadDir("ui")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, f := range files {
		want, err := os.ReadFile("ui/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		total += len(want)
		url := c.base + "/ui/" + f.Name()

		plain := uiGet(t, url)
		got, err := io.ReadAll(plain.Body)
		if err != nil || plain.StatusCode != 200 || string(got) != string(want) {
			t.Errorf("%s: %d, %d bytes, %v; want %d bytes", f.Name(), plain.StatusCode, len(got), err, len(want))
		}
		for name, part := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'",
			"X-Content-Type-Options":  "nosniff",
			"Referrer-Policy":         "no-referrer",
			"Cache-Control":           "no-cache",
			"Vary":                    "Accept-Encoding",
		} {
			if v := plain.Header.Get(name); !strings.Contains(v, part) {
				t.Errorf("%s: %s is %q, want %q", f.Name(), name, v, part)
			}
		}

		zipped := uiGet(t, url, "Accept-Encoding", "gzip, deflate, br, zstd")
		if zipped.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(zipped.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(z); err != nil || string(got) != string(want) {
				t.Errorf("%s compressed: %d bytes, %v; want %d", f.Name(), len(got), err, len(want))
			}
		} else if len(want) > 1000 {
			t.Errorf("%s is not compressed", f.Name())
		}

		again := uiGet(t, url, "If-None-Match", plain.Header.Get("ETag"))
		if body, _ := io.ReadAll(again.Body); again.StatusCode != 304 || len(body) > 0 || again.Header.Get("ETag") != plain.Header.Get("ETag") {
			t.Errorf("%s: the same tag answers %d, %d bytes", f.Name(), again.StatusCode, len(body))
		}
	}
	if total > 150<<10 {
		t.Errorf("the UI is %d bytes, want at most 150 KiB", total)
	}
	if a := uiGet(t, c.base+"/"); a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("/: %d %s", a.StatusCode, a.Header.Get("Content-Type"))
	}
	for _, path := range []string{"/ui", "/ui/", "/ui/absent.js", "/ui/../mgmt.go", "/index.html"} {
		if a := uiGet(t, c.base+path); a.StatusCode != 404 {
			t.Errorf("%s: %d, want 404", path, a.StatusCode)
		}
	}
}

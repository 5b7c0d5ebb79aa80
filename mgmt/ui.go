package mgmt

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"
)

// The management UI: a page and its modules, served as they are. It calls the API with the credentials
// that its user types, in a header: there is no cookie, and so nothing that a page of another site could use.
//
//go:embed ui
var uiFiles embed.FS

// asset is one file of the UI. Immutable.
type asset struct {
	kind       string // content type
	body       []byte
	compressed []byte // gzip; nil: not worth it
	tag        string // ETag
}

// assets are the files of the UI by their path in URLs. They are compressed when the first is asked for.
var assets = sync.OnceValue(func() map[string]*asset {
	files := make(map[string]*asset)
	err := fs.WalkDir(uiFiles, "ui", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := uiFiles.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		a := &asset{kind: assetKinds[path.Ext(name)], body: body, tag: `W/"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		if a.kind == "" {
			panic("BUG: a file of the UI has no content type: " + name)
		}
		var z bytes.Buffer
		w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
		if err != nil {
			return err
		}
		w.Write(body) // into memory, which takes it
		w.Close()
		if z.Len() < len(body) {
			a.compressed = z.Bytes()
		}
		files["/"+name] = a
		return nil
	})
	if err != nil {
		panic("BUG: the files of the UI can't be read: " + err.Error())
	}
	files["/"] = files["/ui/index.html"]
	return files
})

var assetKinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// uiHeaders bind the page to its own files and the API, whatever a name or a payload holds: nothing inline
// runs, no text becomes markup, nobody frames it.
var uiHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
}

// serveUI answers with a file of the UI; false: there is none of that path.
func serveUI(c *fasthttp.RequestCtx, path string) bool {
	a := assets()[path]
	if a == nil {
		return false
	}
	h := &c.Response.Header
	for name, value := range uiHeaders {
		h.Set(name, value)
	}
	h.Set("ETag", a.tag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache") // kept, but asked for again: files of two versions never mix
	if strings.Contains(string(c.Request.Header.Peek("If-None-Match")), a.tag) {
		c.NotModified()
		h.Set("ETag", a.tag)
		return true
	}
	c.SetContentType(a.kind)
	if a.compressed != nil && c.Request.Header.HasAcceptEncoding("gzip") {
		h.SetContentEncoding("gzip")
		c.SetBody(a.compressed)
		return true
	}
	c.SetBody(a.body)
	return true
}

package mgmt

import (
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
)

// level says who may use an endpoint. Levels for one vhost look at the {vhost} of the path.
type level uint8

const (
	administrator level = iota // the strictest is what an endpoint gets that says nothing
	monitoring                 // monitoring and administrators
	policymaker                // policymakers and administrators
	vhostPolicy                // policymakers that may open the vhost, and administrators
	vhostReader                // vhostUser and monitoring
	vhostUser                  // who may open the vhost, and administrators
	member                     // any user with a tag that opens the API; lists show what it may see
	public                     // anybody, without credentials
)

// The tags that open the API.
const (
	tagManagement    = "management"
	tagPolicymaker   = "policymaker"
	tagMonitoring    = "monitoring"
	tagAdministrator = "administrator"
)

// handler carries out one method of an endpoint. Errors: *failure, or any other for a 500.
type handler func(r *request) error

// endpoint is one path of the API with its methods.
type endpoint struct {
	path string // "/queues/{vhost}/{queue}"
	// level is for GET, write for the other methods.
	level, write           level
	get, put, post, delete handler

	parts []string // of path
	typed bool     // bodies need the content type application/json
	large bool     // bodies may be large
}

// handler finds the one of a method; nil: not allowed.
func (e *endpoint) handler(method string) handler {
	switch method {
	case "GET", "HEAD":
		return e.get
	case "PUT":
		return e.put
	case "POST":
		return e.post
	case "DELETE":
		return e.delete
	}
	return nil
}

// allow is the header of that name.
func (e *endpoint) allow() string {
	var methods []string
	for _, m := range [...]string{"HEAD", "GET", "PUT", "POST", "DELETE"} {
		if e.handler(m) != nil {
			methods = append(methods, m)
		}
	}
	return strings.Join(append(methods, "OPTIONS"), ", ")
}

// router finds endpoints by path. Immutable.
type router struct{ byLength map[int][]*endpoint }

func newRouter(list []endpoint) *router {
	rt := &router{byLength: make(map[int][]*endpoint)}
	for i := range list {
		e := &list[i]
		e.parts, _ = splitPath(strings.NewReplacer("{", "%7B", "}", "%7D").Replace(e.path))
		rt.byLength[len(e.parts)] = append(rt.byLength[len(e.parts)], e)
	}
	for _, l := range rt.byLength {
		// Fixed words before names: /users/without-permissions before /users/{user}.
		slices.SortStableFunc(l, func(a, b *endpoint) int { return strings.Count(a.path, "{") - strings.Count(b.path, "{") })
	}
	return rt
}

// find gives the endpoint of a path, cut into segments, and the names in it; nil if there is none.
func (rt *router) find(segments []string) (*endpoint, map[string]string) {
next:
	for _, e := range rt.byLength[len(segments)] {
		for i, p := range e.parts {
			if p[0] != '{' && p != segments[i] {
				continue next
			}
		}
		vars := make(map[string]string)
		for i, p := range e.parts {
			if p[0] == '{' {
				vars[p[1:len(p)-1]] = segments[i]
			}
		}
		return e, vars
	}
	return nil, nil
}

const apiPrefix = "/api"

// serveAPI answers a request below /api; segments are its path below that. One that waited for leave to send its body
// was checked before.
func (s *Server) serveAPI(c *fasthttp.RequestCtx, segments []string) {
	r, ok := c.UserValue(checkedKey{}).(*request)
	var err error
	if !ok {
		r, err = s.newRequest(c, segments)
	}
	if err == nil && r.handler != nil {
		err = r.carryOut()
	}
	if err != nil {
		r.fail(err)
	}
}

// checkedKey is where a request is kept that was checked before its body came.
type checkedKey struct{}

// expect decides, of a request whose sender waits for leave to send the body, whether it may: what serveAPI would refuse
// without a look at the body is refused here, and the connection ends behind the answer.
func (s *Server) expect(c *fasthttp.RequestCtx) int {
	socket := c.Conn().(*conn)
	s.enter(socket, serving)
	segments, isAPI := apiPath(c)
	if !isAPI {
		if c.IsGet() || c.IsHead() {
			return fasthttp.StatusContinue
		}
		s.serve(c) // none of the others takes a body
	} else if r, err := s.newRequest(c, segments); err != nil {
		r.fail(err)
	} else if r.handler != nil {
		c.SetUserValue(checkedKey{}, r)
		return fasthttp.StatusContinue
	}
	socket.linger = true // some send the body although they said that they would wait
	return c.Response.StatusCode()
}

// apiPath is the path of a request below /api, in segments; nil for /api itself, and when an escape is malformed.
func apiPath(c *fasthttp.RequestCtx) (segments []string, isAPI bool) {
	path := string(c.URI().PathOriginal())
	segments, ok := splitPath(path)
	if !ok {
		return nil, strings.HasPrefix(path, apiPrefix+"/")
	}
	if len(segments) == 0 || segments[0] != apiPrefix[1:] {
		return nil, false
	}
	return segments[1:], true
}

// fail answers with an error, of which all but a *failure is one of the broker itself.
func (r *request) fail(err error) {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		r.s.opt.Log.Error("a request of the management API failed", "method", string(r.Method()), "path", string(r.Path()), "error", err)
		f = failed(500, "internal_server_error", "see the broker's log")
	}
	if f.cause != "" {
		r.logRefusal(f)
	}
	r.ResetBody()
	r.drop()
	r.write(f)
}

// mostBody is how large a body may be.
func (e *endpoint) mostBody() int {
	switch {
	case e.large:
		return maxBody
	case e.write == public:
		return maxLoginBody
	}
	return maxAnyBody
}

// newRequest checks all of a request but its body. Its handler is nil when the answer is there without it.
func (s *Server) newRequest(c *fasthttp.RequestCtx, segments []string) (*request, error) {
	c.Response.Header.Set(noSniff, "nosniff")
	r := &request{RequestCtx: c, s: s}
	return r, r.check(segments)
}

func (r *request) check(segments []string) error {
	if len(segments) == 0 {
		if _, ok := splitPath(string(r.URI().PathOriginal())); !ok {
			return &failure{status: 400}
		}
		r.Response.Header.Set("Location", "/api/index.html")
		r.SetStatusCode(fasthttp.StatusMovedPermanently)
		return nil
	}
	e, vars := r.s.router.find(segments)
	if e == nil {
		return missing
	}
	r.vars, r.path = vars, e.path
	method := string(r.Method())
	if method == fasthttp.MethodOptions {
		r.Response.Header.Set("Allow", e.allow())
		return nil
	}
	h := e.handler(method)
	if h == nil {
		r.Response.Header.Set("Allow", e.allow())
		return &failure{status: 405}
	}
	if crossSite(r) {
		return failed(403, "not_authorised", "Requests from another site are refused").because("it comes from a page of another site")
	}
	need := e.level
	if r.writes() {
		need = e.write
	}
	if need != public {
		if err := r.identify(); err != nil {
			return err
		}
		if err := r.authorise(need); err != nil {
			return err
		}
	}
	if _, err := url.QueryUnescape(string(r.URI().QueryString())); err != nil {
		return &failure{status: 400}
	}
	if !acceptsJSON(string(r.Request.Header.Peek("Accept"))) {
		return &failure{status: 406}
	}
	if e.typed && (method == "PUT" || method == "POST") && !jsonBody(r) {
		return &failure{status: 415}
	}
	if e.put != nil && e.get != nil && r.writes() {
		if err := r.precondition(e.get); err != nil {
			return err
		}
	}
	if r.writes() {
		if err := r.admit(e.mostBody()); err != nil {
			return err
		}
	}
	r.handler, r.most = h, e.mostBody()
	return nil
}

const noSniff = "X-Content-Type-Options"

// precondition holds a change of an object to If-Match and If-None-Match, as RabbitMQ does: there are no entity tags, so
// that they ask whether the object is there, which get says.
func (r *request) precondition(get handler) error {
	match, none := r.Request.Header.Peek("If-Match"), r.Request.Header.Peek("If-None-Match")
	if len(match) == 0 && len(none) == 0 {
		return nil
	}
	err := get(r)
	r.Response.Reset() // what it answered
	r.Response.Header.Set(noSniff, "nosniff")
	if f, ok := errors.AsType[*failure](err); err != nil && !(ok && f.status == 404) {
		return err
	}
	exists := err == nil
	if len(match) > 0 && !(exists && strings.TrimSpace(string(match)) == "*") || len(none) > 0 && exists {
		return &failure{status: 412}
	}
	return nil
}

func (r *request) writes() bool { return !r.IsGet() && !r.IsHead() }

// carryOut runs the handler of a request that was checked.
func (r *request) carryOut() error {
	if !r.writes() {
		return r.handler(r)
	}
	if err := r.receive(r.most); err != nil {
		return err
	}
	if err := r.handler(r); err != nil {
		return err
	}
	// Success promises that the change outlives a crash.
	select {
	case <-r.s.opt.Broker.Settled():
		return nil
	case <-r.s.quit:
		return failed(503, "service_unavailable", "the broker stops: what was changed may be lost")
	}
}

// identify checks the credentials.
func (r *request) identify() error {
	header := r.Request.Header.Peek("Authorization")
	if coded := r.query("auth"); coded != "" && len(header) == 0 && strings.HasPrefix(r.path, "/definitions") {
		header = []byte("Basic " + coded) // a browser's download
	}
	name, password, present, err := credentials(header)
	if err != nil {
		return &failure{status: 400}
	}
	if !present {
		r.Response.Header.Set("WWW-Authenticate", challenge)
		return failed(401, "not_authorised", "Not_Authorized")
	}
	u, f := r.login(name, password)
	if f != nil {
		return f
	}
	r.user = u
	return nil
}

// authorise checks the tags and the vhost of a user.
func (r *request) authorise(need level) error {
	u := r.user
	if !opensAPI(u) {
		return notAuthorised("Not management user")
	}
	admin := u.HasTag(tagAdministrator)
	if need == vhostPolicy && !admin && !u.HasTag(tagPolicymaker) {
		return notAuthorised("User not authorised to access object") // whatever vhosts there are
	}
	vhost, inVHost := r.vars["vhost"]
	noVHost := *missing
	if r.IsPut() || r.IsPost() {
		noVHost = *errVHostMissing
	}
	if inVHost && need != administrator && !r.s.opt.Broker.HasVHost(vhost) {
		return &noVHost
	}
	switch need {
	case vhostUser, vhostReader, vhostPolicy:
		if !admin && !r.s.opens(u, vhost) && !(need == vhostReader && u.HasTag(tagMonitoring)) {
			// It is not told that there is one.
			return noVHost.because("User not authorised to access virtual host")
		}
	case policymaker:
		if !admin && !u.HasTag(tagPolicymaker) {
			return notAuthorised("User not authorised to access object")
		}
	case monitoring:
		if !admin && !u.HasTag(tagMonitoring) {
			return notAuthorised("Not monitor user")
		}
	case administrator:
		if !admin {
			return notAuthorised("Not administrator user")
		}
	}
	return nil
}

func opensAPI(u *auth.User) bool {
	return slices.ContainsFunc(u.Tags, func(t string) bool {
		return t == tagManagement || t == tagPolicymaker || t == tagMonitoring || t == tagAdministrator
	})
}

// opens says whether the user may open the vhost.
func (s *Server) opens(u *auth.User, vhost string) bool {
	_, ok := s.opt.Broker.Users().Access(u.Name, vhost)
	return ok
}

// seesAll says whether the user sees all vhosts, connections, channels and consumers.
func (r *request) seesAll() bool {
	return r.user.HasTag(tagAdministrator) || r.user.HasTag(tagMonitoring)
}

// vhosts lists the vhosts that the user sees.
func (r *request) vhosts() []string {
	all := r.s.opt.Broker.VHosts()
	if r.seesAll() {
		return all
	}
	return slices.DeleteFunc(all, func(v string) bool { return !r.s.opens(r.user, v) })
}

// visible is the vhost of the path, or all that the user sees.
func (r *request) visible() []string {
	if v, ok := r.vars["vhost"]; ok {
		return []string{v}
	}
	return r.vhosts()
}

// scope is the vhosts whose queues, exchanges, bindings, policies and parameters a list shows: the one of the path, or
// all that the user may open. Of those monitoring alone opens none.
func (r *request) scope() []string {
	if _, ok := r.vars["vhost"]; ok || r.user.HasTag(tagAdministrator) {
		return r.visible()
	}
	return slices.DeleteFunc(r.s.opt.Broker.VHosts(), func(v string) bool { return !r.s.opens(r.user, v) })
}

// act runs verbs in the vhost of the path with the user's own permissions.
func (r *request) act(verbs func(c *broker.Conn) error) error {
	c, e := r.s.opt.Broker.ActFor(broker.UserOf(r.user), r.vars["vhost"])
	if e != nil {
		return refusal(e)
	}
	defer c.Close()
	err := verbs(c)
	if _, e := c.EndTurn(); e != nil && err == nil {
		return refusal(e)
	}
	return err
}

// crossSite recognises a request that a page of another site made a browser send, perhaps with
// remembered credentials. Programs send none of these headers.
func crossSite(r *request) bool {
	if r.IsGet() || r.IsHead() {
		return false
	}
	switch string(r.Request.Header.Peek("Sec-Fetch-Site")) {
	case "cross-site", "same-site":
		return true
	case "same-origin", "none":
		return false
	}
	origin := r.Request.Header.Peek("Origin")
	if len(origin) == 0 {
		return false
	}
	u, err := url.Parse(string(origin))
	// The header, not the URL's host: a path that begins with two slashes may name one.
	return err != nil || !strings.EqualFold(u.Host, string(r.Request.Header.Host()))
}

// acceptsJSON reads an Accept header; none accepts everything.
func acceptsJSON(accept string) bool {
	if strings.TrimSpace(accept) == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, _, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "*/*", "application/*", "application/json", "*":
			return true
		}
	}
	return false
}

func jsonBody(r *request) bool {
	kind, _, _ := strings.Cut(string(r.Request.Header.ContentType()), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "application/json")
}

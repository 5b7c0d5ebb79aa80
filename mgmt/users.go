package mgmt

import (
	"errors"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/mgmt/api"
)

func whoami(r *request) error {
	return r.ok(struct {
		Name     string   `json:"name"`
		Tags     []string `json:"tags"`
		Internal bool     `json:"is_internal_user"`
	}{r.user.Name, slices.Concat([]string{}, r.user.Tags), true})
}

func userOf(u *auth.User) api.User {
	limits := u.Limits
	if limits == nil {
		limits = map[string]int{}
	}
	return api.User{
		Name: u.Name, PasswordHash: u.Hash, HashingAlgorithm: string(u.Algorithm), Tags: append(api.Tags{}, u.Tags...), Limits: limits,
	}
}

func listUsers(r *request) error {
	return list(r, r.s.opt.Broker.Users().Users(), func(u **auth.User) string { return (*u).Name },
		func(u **auth.User, _ parts) api.User { return userOf(*u) })
}

func listUsersWithoutPermissions(r *request) error {
	has := make(map[string]bool)
	for _, p := range r.s.opt.Broker.Users().Permissions() {
		has[p.User] = true
	}
	items := []api.User{}
	for _, u := range r.s.opt.Broker.Users().Users() {
		if !has[u.Name] {
			items = append(items, userOf(u))
		}
	}
	return plain(r, items)
}

func (r *request) namedUser() (*auth.User, error) {
	u, ok := r.s.opt.Broker.Users().User(r.vars["user"])
	if !ok {
		return nil, missing
	}
	return u, nil
}

func getUser(r *request) error {
	u, err := r.namedUser()
	if err != nil {
		return err
	}
	return r.ok(userOf(u))
}

// userFrom reads a user's definition.
func userFrom(name string, b body) (auth.User, error) {
	u := auth.User{Name: name}
	switch tags := b["tags"].(type) {
	case string:
		u.Tags = api.SplitTags(tags)
	case []any:
		for _, t := range tags {
			s, ok := t.(string)
			if !ok {
				return u, badRequest([]string{"not_string", "tags"})
			}
			u.Tags = append(u.Tags, s)
		}
	case nil:
		if admin, err := b.boolean("administrator", false); err != nil {
			return u, err
		} else if b["administrator"] == nil {
			return u, badRequest("tags_not_present")
		} else if admin {
			u.Tags = []string{tagAdministrator}
		}
	default:
		return u, badRequest([]string{"not_string", "tags"})
	}
	password, err := b.textIfThere("password")
	if err != nil {
		return u, err
	}
	hash, err := b.textIfThere("password_hash")
	if err != nil {
		return u, err
	}
	algorithm, err := b.text("hashing_algorithm")
	if err != nil {
		return u, err
	}
	_, withPassword := b["password"]
	_, withHash := b["password_hash"]
	switch {
	case withPassword && withHash:
		return u, badRequest("both_password_and_password_hash_are_provided")
	case withPassword:
		u.Hash, u.Algorithm = auth.HashPassword(password), auth.DefaultAlgorithm
	case withHash:
		u.Hash, u.Algorithm = hash, auth.Algorithm(algorithm)
	}
	if limits, ok := b["limits"].(map[string]any); ok {
		for k := range limits {
			n, err := body(limits).integer(k, -1)
			if err != nil {
				return u, err
			}
			if u.Limits == nil {
				u.Limits = make(map[string]int)
			}
			u.Limits[k] = n
		}
	}
	size := len(name) + len(u.Hash) + len(u.Algorithm) + sizeOf(u.Tags)
	for k := range u.Limits {
		size += len(k) + itemSize
	}
	return u, within("user", size)
}

// badUser is the answer to a user that the store refuses.
func badUser(err error, u *auth.User) error {
	switch {
	case errors.Is(err, auth.ErrBadHash):
		return badRequest([]string{"not_base64", u.Hash})
	case errors.Is(err, auth.ErrBadAlgorithm):
		return badRequest([]string{"unknown_hashing_algorithm", string(u.Algorithm)})
	}
	return badRequest(err.Error())
}

func putUser(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	name := r.vars["user"]
	u, err := userFrom(name, b)
	if err != nil {
		return err
	}
	var grants []auth.Permission
	if in, ok := b["permissions"].(map[string]any); ok {
		for vhost, v := range in {
			p, ok := v.(map[string]any)
			if !ok || !r.s.opt.Broker.HasVHost(vhost) {
				return badRequest("vhost_or_user_not_found")
			}
			g, err := permissionFrom(name, vhost, p)
			if err != nil {
				return err
			}
			grants = append(grants, g)
		}
	}
	store := r.s.opt.Broker.Users()
	if b["limits"] == nil {
		if old, ok := store.User(name); ok {
			u.Limits = old.Limits
		}
	}
	created, err := store.PutUser(u)
	if err != nil {
		return badUser(err, &u)
	}
	if created {
		for _, g := range grants {
			if _, err := store.SetPermissions(g); err != nil {
				return badPattern(err)
			}
		}
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(created)
}

func deleteUser(r *request) error {
	if !r.s.opt.Broker.DeleteUser(r.vars["user"]) {
		return missing
	}
	return r.done(false)
}

func deleteUsers(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	if err := b.need("users"); err != nil {
		return err
	}
	names, ok := b["users"].([]any)
	if !ok {
		return badRequest([]string{"not_list", "users"})
	}
	for _, n := range names {
		if _, ok := n.(string); !ok {
			return badRequest([]string{"not_string", "users"})
		}
	}
	for _, n := range names {
		r.s.opt.Broker.DeleteUser(n.(string)) // who is gone already is what was asked for
	}
	return r.done(false)
}

// permissions are those that pick chooses.
func (r *request) permissions(pick func(user, vhost string) bool) []api.Permission {
	items := []api.Permission{}
	for _, p := range r.s.opt.Broker.Users().Permissions() {
		if pick(p.User, p.VHost) {
			items = append(items, api.Permission(p))
		}
	}
	return items
}

func (r *request) topicPermissions(pick func(user, vhost string) bool) []api.TopicPermission {
	items := []api.TopicPermission{}
	for _, p := range r.s.opt.Broker.Users().TopicPermissions() {
		if pick(p.User, p.VHost) {
			items = append(items, api.TopicPermission(p))
		}
	}
	return items
}

// subject picks permissions by what the path names.
func (r *request) subject(user, vhost string) bool {
	u, byUser := r.vars["user"]
	v, byVHost := r.vars["vhost"]
	return (!byUser || u == user) && (!byVHost || v == vhost)
}

// known refuses a user or a vhost in the path that does not exist.
func (r *request) known() error {
	if u, ok := r.vars["user"]; ok {
		if _, ok := r.s.opt.Broker.Users().User(u); !ok {
			return missing
		}
	}
	if v, ok := r.vars["vhost"]; ok && !r.s.opt.Broker.HasVHost(v) {
		return missing
	}
	return nil
}

func listPermissions(r *request) error {
	if err := r.known(); err != nil {
		return err
	}
	return plain(r, r.permissions(r.subject))
}

func listTopicPermissions(r *request) error {
	if err := r.known(); err != nil {
		return err
	}
	return plain(r, r.topicPermissions(r.subject))
}

func getPermission(r *request) error {
	for _, p := range r.permissions(r.subject) {
		return r.ok(p)
	}
	return missing
}

func getTopicPermission(r *request) error {
	items := r.topicPermissions(r.subject)
	if len(items) == 0 {
		return missing
	}
	return plain(r, items)
}

// bothKnown is known for a PUT, which answers 400.
func (r *request) bothKnown() error {
	if r.known() != nil {
		return badRequest("vhost_or_user_not_found")
	}
	return nil
}

func permissionFrom(user, vhost string, b body) (auth.Permission, error) {
	p := auth.Permission{User: user, VHost: vhost}
	if err := b.need("configure", "write", "read"); err != nil {
		return p, err
	}
	for key, field := range map[string]*string{"configure": &p.Configure, "write": &p.Write, "read": &p.Read} {
		s, ok := b[key].(string)
		if !ok {
			return p, badRequest([]string{"not_string", key})
		}
		*field = s
	}
	return p, within("permission", len(p.Configure)+len(p.Write)+len(p.Read))
}

// badPattern is the answer to a pattern that does not compile.
func badPattern(err error) error {
	if p, ok := errors.AsType[*auth.PatternError](err); ok {
		return badRequest([]any{"invalid_regexp", p.Pattern, []any{p.Err.Error(), 0}})
	}
	if errors.Is(err, auth.ErrNoUser) {
		return badRequest("vhost_or_user_not_found")
	}
	return err
}

func putPermission(r *request) error {
	if err := r.bothKnown(); err != nil {
		return err
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	p, err := permissionFrom(r.vars["user"], r.vars["vhost"], b)
	if err != nil {
		return err
	}
	created, err := r.s.opt.Broker.Users().SetPermissions(p)
	if err != nil {
		return badPattern(err)
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(created)
}

func deletePermission(r *request) error {
	if !r.s.opt.Broker.Users().ClearPermissions(r.vars["user"], r.vars["vhost"]) {
		return missing
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(false)
}

func putTopicPermission(r *request) error {
	if err := r.bothKnown(); err != nil {
		return err
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	if err := b.need("exchange", "write", "read"); err != nil {
		return err
	}
	p := auth.TopicPermission{User: r.vars["user"], VHost: r.vars["vhost"]}
	for key, field := range map[string]*string{"exchange": &p.Exchange, "write": &p.Write, "read": &p.Read} {
		s, ok := b[key].(string)
		if !ok {
			return badRequest([]string{"not_string", key})
		}
		*field = s
	}
	if err := within("topic permission", len(p.Exchange)+len(p.Write)+len(p.Read)); err != nil {
		return err
	}
	if _, ok := r.s.opt.Broker.Exchange(p.VHost, p.Exchange); !ok {
		return badRequest([]string{"no_such_exchange", p.Exchange})
	}
	had := len(r.topicPermissions(r.subject)) > 0 // of any exchange: they are one object
	if _, err := r.s.opt.Broker.Users().SetTopicPermission(p); err != nil {
		return badPattern(err)
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(!had)
}

func deleteTopicPermission(r *request) error {
	if len(r.topicPermissions(r.subject)) == 0 {
		return missing
	}
	var exchanges []string
	if x, ok := r.vars["exchange"]; ok {
		exchanges = []string{x}
	}
	r.s.opt.Broker.Users().ClearTopicPermissions(r.vars["user"], r.vars["vhost"], exchanges...)
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(false)
}

func hashPassword(r *request) error {
	return r.ok(map[string]string{"ok": auth.HashPassword(r.vars["password"])})
}

// userLimits are the names of limits that a user can have.
var userLimits = []string{"max-connections", "max-channels"}

type userLimitsOf struct {
	User  string         `json:"user"`
	Value map[string]int `json:"value"`
}

func listUserLimits(r *request) error {
	one, named := r.vars["user"]
	if named {
		if err := r.mayTouchUser(tagMonitoring); err != nil {
			return err
		}
		if err := r.known(); err != nil {
			return err
		}
	}
	items := []userLimitsOf{}
	for _, u := range r.s.opt.Broker.Users().Users() {
		if len(u.Limits) == 0 || named && u.Name != one || !named && !r.seesAll() && u.Name != r.user.Name {
			continue
		}
		items = append(items, userLimitsOf{u.Name, u.Limits})
	}
	return plain(r, items)
}

// limitFrom reads the value of one limit of a user or a vhost.
func limitFrom(r *request, known []string, kind string) (int, error) {
	b, err := r.body()
	if err != nil {
		return 0, err
	}
	if err := b.need("value"); err != nil {
		return 0, err
	}
	name := r.vars["limit"]
	n, err := b.integer("value", 0)
	_, text := b["value"].(string)
	switch {
	case !slices.Contains(known, name):
		return 0, badRequestf("Unrecognised terms [{<<\"%s\">>,%v}] in %s", name, term(b["value"]), kind)
	case err != nil, text:
		return 0, badRequestf("%s should be a number, actually was %s", name, term(b["value"]))
	}
	return n, nil
}

// term is a JSON value as RabbitMQ's error texts print it.
func term(v any) string {
	if s, ok := v.(string); ok {
		return `<<"` + s + `">>`
	}
	return strings.TrimSpace(string(encode(nil, v, nil)))
}

func putUserLimit(r *request) error {
	if r.known() != nil {
		return badRequest([]string{"no_such_user", r.vars["user"]})
	}
	n, err := limitFrom(r, userLimits, "user-limits")
	if err != nil {
		return err
	}
	if err := r.s.opt.Broker.Users().SetLimit(r.vars["user"], r.vars["limit"], n); err != nil {
		return badRequest([]string{"no_such_user", r.vars["user"]})
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(false)
}

func deleteUserLimit(r *request) error {
	limits := []string{r.vars["limit"]}
	if limits[0] == "all" {
		limits = nil
	}
	if err := r.s.opt.Broker.Users().ClearLimits(r.vars["user"], limits...); err != nil {
		return missing
	}
	r.s.opt.Broker.UsersChanged(r.vars["user"])
	return r.done(false)
}

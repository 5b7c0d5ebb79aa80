package broker

import (
	"errors"

	"github.com/firemq/firemq/broker/auth"
)

// Users is the store of users and permissions. Who changes it calls UsersChanged afterwards.
func (b *Broker) Users() *auth.Store { return b.users }

// UsersChanged has what these users are now written to the journal, and saved: the change is safe as
// soon as Settled says so.
func (b *Broker) UsersChanged(names ...string) {
	b.topo.Lock()
	defer b.topo.Unlock()
	// What is looked up under topo is at least as new as the change; of two changes at once the record
	// that comes later has both.
	changed := make(map[string]*userChange, len(names))
	for _, name := range names {
		changed[name] = nil
		if u, ok := b.users.User(name); ok {
			changed[name] = &userChange{User: *u}
		}
	}
	for _, p := range b.users.Permissions() {
		if u := changed[p.User]; u != nil {
			u.Permissions = append(u.Permissions, p)
		}
	}
	for _, p := range b.users.TopicPermissions() {
		if u := changed[p.User]; u != nil {
			u.Topics = append(u.Topics, p)
		}
	}
	for name, u := range changed {
		b.note(&change{Op: opUser, Name: name, User: u})
	}
}

// userChanged carries out the record of UsersChanged.
func (b *Broker) userChanged(name string, u *userChange) error {
	b.users.DeleteUser(name)
	if u == nil {
		return nil
	}
	return b.importUsers(&UserDefs{Users: []auth.User{u.User}, Permissions: u.Permissions, Topics: u.Topics})
}

// AddFirstUser makes an administrator with every permission on every vhost.
func (b *Broker) AddFirstUser(name, password string) error {
	if err := b.users.AddUser(name, password, "administrator"); err != nil {
		return err
	}
	for _, vhost := range b.VHosts() {
		if _, err := b.users.SetPermissions(auth.Permission{User: name, VHost: vhost, Configure: ".*", Write: ".*", Read: ".*"}); err != nil {
			return err
		}
	}
	b.UsersChanged(name)
	return nil
}

// DeleteUser removes a user with its permissions and closes its connections. False: there is none.
func (b *Broker) DeleteUser(name string) bool {
	if !b.users.DeleteUser(name) {
		return false
	}
	b.UsersChanged(name)
	b.closeConns(refuse(ConnectionForced, "user '%s' is deleted", name), func(c *Conn) bool { return c.user.Name() == name })
	return true
}

// UserDefs are the users and what they may do, as a Snapshot holds them.
type UserDefs struct {
	Users       []auth.User
	Permissions []auth.Permission
	Topics      []auth.TopicPermission
}

func (b *Broker) exportUsers() UserDefs {
	var d UserDefs
	for _, u := range b.users.Users() {
		d.Users = append(d.Users, *u)
	}
	d.Permissions = b.users.Permissions()
	d.Topics = b.users.TopicPermissions()
	return d
}

func (b *Broker) importUsers(d *UserDefs) error {
	var errs []error
	for _, u := range d.Users {
		_, err := b.users.PutUser(u)
		errs = append(errs, err)
	}
	for _, p := range d.Permissions {
		_, err := b.users.SetPermissions(p)
		errs = append(errs, err)
	}
	for _, p := range d.Topics {
		_, err := b.users.SetTopicPermission(p)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

package broker

import (
	"errors"

	"github.com/firemq/firemq/broker/auth"
)

// Users is the store of users and permissions. Who changes it calls UsersChanged afterwards.
func (b *Broker) Users() *auth.Store { return b.users }

// UsersChanged has the change saved.
func (b *Broker) UsersChanged() { b.opt.OnChange() }

// AddFirstUser makes an administrator with every permission on every vhost.
func (b *Broker) AddFirstUser(name, password string) error {
	if err := b.users.AddUser(name, password, "administrator"); err != nil {
		return err
	}
	b.topo.RLock()
	defer b.topo.RUnlock()
	for vhost := range b.vhosts {
		if _, err := b.users.SetPermissions(auth.Permission{User: name, VHost: vhost, Configure: ".*", Write: ".*", Read: ".*"}); err != nil {
			return err
		}
	}
	b.opt.OnChange()
	return nil
}

// DeleteUser removes a user with its permissions and closes its connections. False: there is none.
func (b *Broker) DeleteUser(name string) bool {
	if !b.users.DeleteUser(name) {
		return false
	}
	b.opt.OnChange()
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

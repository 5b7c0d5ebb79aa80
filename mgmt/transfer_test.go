package mgmt_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/firemq/firemq/mgmt/api"
)

func (c *client) transfer(path string, body object) (r api.Transferred) {
	c.t.Helper()
	a := c.want(200, "POST", path, body)
	if err := json.Unmarshal([]byte(a.body), &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}

func TestTransfer(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/dead", object{})
	c.want(201, "PUT", "/queues/%2F/other", object{})
	c.want(201, "PUT", "/queues/%2F/work", object{"arguments": object{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}})
	for _, p := range []string{"a1", "b1", "a2", "b2", "c"} {
		c.want(200, "POST", "/exchanges/%2F/amq.default/publish", message("work", p))
	}
	content := func(queue string) string { return bodies(get[api.Browse](c, "/queues/%2F/"+queue+"/messages")) }
	const work = "/queues/%2F/work/messages"
	if r := c.transfer(work+"/move", object{"to": "other", "filter": object{"body": "a"}}); r.Done != 2 || r.More || content("work") != "b1 b2 c" || content("other") != "a1 a2" {
		t.Errorf("%+v", r)
	}
	if r := c.transfer(work+"/copy", object{"to": "other", "sequences": []int{5}}); r.Done != 1 || content("other") != "a1 a2 c" {
		t.Errorf("%+v", r)
	}
	if r := c.transfer(work+"/delete", object{"sequences": []int{4, 99}}); r.Done != 1 || content("work") != "b1 c" {
		t.Errorf("%+v", r)
	}
	c.want(200, "POST", "/queues/%2F/work/get", object{"count": 2, "ackmode": "reject_requeue_false", "encoding": "auto"})
	if r := c.transfer("/queues/%2F/dead/messages/replay", object{"all": true, "limit": 1}); r.Done != 1 || !r.More || content("work") != "b1" || content("dead") != "c" {
		t.Errorf("%+v", r)
	}
	if r := c.transfer("/queues/%2F/dead/messages/replay", object{"all": true, "through_exchange": true}); r.Done != 1 || r.More || content("work") != "b1 c" {
		t.Errorf("%+v", r)
	}
	if r := c.transfer("/queues/%2F/other/messages/replay", object{"all": true}); r.Done != 0 || r.Failed != 3 || !strings.Contains(r.Reason, "is no dead letter") {
		t.Errorf("%+v", r)
	}
	for _, x := range []struct {
		path   string
		body   object
		status int
		reason string
	}{
		{work + "/delete", object{}, 400, "say which messages"},
		{work + "/delete", object{"filter": object{}}, 400, "say which messages"},
		{work + "/delete", object{"filter": object{"bdoy": "x"}}, 400, "bdoy is not known"},
		{work + "/delete", object{"all": true, "to": "other"}, 400, "to is not known"},
		{work + "/delete", object{"sequences": []any{"x"}}, 400, "no list"},
		{work + "/delete", object{"all": true, "limit": 0}, 400, "limit is no number"},
		{work + "/move", object{"all": true}, 400, "{key_missing,to}"},
		{work + "/move", object{"all": true, "to": "work"}, 400, "cannot receive its own messages"},
		{work + "/move", object{"all": true, "to": "absent"}, 404, "no queue 'absent'"},
		{work + "/move", object{"all": true, "to": "other", "cursor": "x"}, 400, "no cursor"},
	} {
		if a := c.do("POST", x.path, x.body); a.status != x.status || !strings.Contains(a.reason(), x.reason) {
			t.Errorf("%s %v: %d %s", x.path, x.body, a.status, a.body)
		}
	}
	c.addUser("app", "management").grant("/", ".*", "^other$", ".*").want(401, "POST", work+"/move", object{"all": true, "to": "other"})
	if content("work") != "b1 c" {
		t.Error(content("work"))
	}
}

package mgmt

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

// Bounds of one transfer, felt as one that ends early: its cursor goes on.
const (
	transferDefault = 1000
	maxTransfer     = 100_000
	transferTime    = 10 * time.Second
	maxSequences    = 10_000
)

// transfer copies, moves, deletes or replays messages that the body picks: by "filter", by "sequences", or with
// "all": true.
func transfer(deed broker.Deed) handler {
	return func(r *request) error {
		if _, err := r.queueOf(); err != nil {
			return err
		}
		b, err := r.body()
		if err != nil {
			return err
		}
		a, err := transferOf(b, deed)
		if err != nil {
			return err
		}
		a.Queue = r.vars["queue"]
		return r.act(func(c *broker.Conn) error {
			done, e := c.Transfer(a)
			if e != nil && done.Done == 0 {
				return refusal(e)
			}
			v := api.Transferred{Done: done.Done, Failed: done.Failed, Scanned: done.Scanned, More: done.More, Cursor: done.Next.String()}
			if e == nil {
				e = done.Reason
			}
			if e != nil {
				v.Reason = e.Text
			}
			return r.ok(v)
		})
	}
}

func transferOf(b body, deed broker.Deed) (*broker.Transfer, error) {
	keys := []string{"filter", "sequences", "all", "limit", "cursor"}
	a := &broker.Transfer{Deed: deed, Browse: broker.Browse{From: broker.Before(broker.StageReady), Scan: maxScan, Time: transferTime}}
	var err error
	switch deed {
	case broker.Copy, broker.Move:
		keys = append(keys, "to")
		if err := b.need("to"); err != nil {
			return nil, err
		}
		if a.To, err = b.text("to"); err != nil {
			return nil, err
		}
	case broker.Replay:
		keys = append(keys, "through_exchange")
		if a.Through, err = b.boolean("through_exchange", false); err != nil {
			return nil, err
		}
	}
	if err := known(b, keys...); err != nil {
		return nil, err
	}
	if a.Limit, err = b.integer("limit", transferDefault); err != nil {
		return nil, err
	}
	if a.Limit < 1 || a.Limit > maxTransfer {
		return nil, badRequestf("limit is no number from 1 to %d", maxTransfer)
	}
	all, err := b.boolean("all", false)
	if err != nil {
		return nil, err
	}
	if b["filter"] != nil {
		f, ok := b["filter"].(map[string]any)
		if !ok {
			return nil, badRequest([]any{"not_json_object", "filter"})
		}
		if err := known(f, filterKeys...); err != nil {
			return nil, err
		}
		if a.Match, err = filterOf(f); err != nil {
			return nil, err
		}
	}
	if b["sequences"] != nil {
		if a.Sequences, a.From, err = sequencesOf(b["sequences"]); err != nil {
			return nil, err
		}
		a.Scan = 0 // the others are passed over without a look
	}
	if !all && a.Match == nil && a.Sequences == nil {
		return nil, badRequest(`say which messages: "filter", "sequences", or "all": true`)
	}
	if s, err := b.text("cursor"); err != nil {
		return nil, err
	} else if s != "" {
		c, err := broker.ParseCursor(s)
		if err != nil || c.Stage != broker.StageReady {
			return nil, badRequest("this is no cursor of ready messages")
		}
		a.From = c
	}
	return a, nil
}

// sequencesOf reads a list of sequence numbers, and gives a place before them all.
func sequencesOf(v any) (map[uint64]struct{}, broker.Cursor, error) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 || len(list) > maxSequences {
		return nil, broker.Cursor{}, badRequestf("sequences is no list of 1 to %d numbers", maxSequences)
	}
	wanted := make(map[uint64]struct{}, len(list))
	var numbers []uint64
	for _, v := range list {
		s, _ := v.(json.Number)
		n, err := strconv.ParseUint(s.String(), 10, 64)
		if err != nil || n == 0 {
			return nil, broker.Cursor{}, badRequestf("sequences is no list of 1 to %d numbers", maxSequences)
		}
		wanted[n] = struct{}{}
		numbers = append(numbers, n)
	}
	return wanted, broker.BeforeSequence(slices.Min(numbers)), nil
}

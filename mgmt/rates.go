package mgmt

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

// sampleEvery is how often counters are written down. Rates are the change since a sample that is one to
// two of these old; the values themselves are always those of the moment.
const sampleEvery = 5 * time.Second

// How many samples are kept: of the whole for an hour, of an object for a minute. An object that does not
// change keeps one.
const (
	keepTotal  = 721
	keepObject = 13
)

// series are the samples of one object's numbers, the oldest first. Guarded by the sampler's mu.
type series struct {
	times  []int64   // Unix ms
	values [][]int64 // one row a time
	still  int       // samples since something changed
	seen   uint64    // the tick of the last one
}

func (s *series) add(now int64, row []int64, keep int) {
	if n := len(s.values); n > 0 {
		last := s.values[n-1]
		changed := false
		for i := range row {
			changed = changed || row[i] != last[i]
		}
		if changed {
			s.still = 0
		} else if s.still++; s.still > keep {
			// Nothing has happened for as long as samples are kept: one of them says it all.
			s.times, s.values = append(s.times[:0], now), s.values[n-1:n:n]
			return
		}
	}
	if len(s.times) >= keep {
		s.times = s.times[:copy(s.times, s.times[1:])]
		oldest := s.values[0]
		s.values = s.values[:copy(s.values, s.values[1:])]
		row = append(oldest[:0], row...)
	} else {
		row = append([]int64(nil), row...)
	}
	s.times = append(s.times, now)
	s.values = append(s.values, row)
}

// rate is the change a second of one number, whose value now is current.
func (s *series) rate(i int, current, now int64) float64 {
	if s == nil || len(s.times) == 0 {
		return 0
	}
	at := len(s.times) - 1
	// The last sample may be too young to say much.
	if at > 0 && now-s.times[at] < sampleEvery.Milliseconds()/2 {
		at--
	}
	ms := now - s.times[at]
	if ms < 500 {
		return 0
	}
	return float64(current-s.values[at][i]) * 1000 / float64(ms)
}

// window is the range of samples that a query asks for; a zero incr: none.
type window struct{ age, incr int64 } // ms

// samples fills d with samples of one number: before the first one, its value now.
func (s *series) samples(d *api.Details, i int, current, now int64, w window) {
	if w.incr == 0 {
		return
	}
	if s == nil || len(s.times) == 0 {
		s = &series{times: []int64{now}, values: [][]int64{slices.Repeat([]int64{current}, i+1)}}
	}
	at := len(s.times) - 1
	newest := s.times[at]
	sum := 0.0
	for back := int64(0); back <= w.age && len(d.Samples) < keepTotal; back += w.incr {
		t := newest - back
		for at > 0 && s.times[at] > t {
			at--
		}
		if s.times[at] > t {
			break
		}
		v := s.values[at][i]
		d.Samples = append(d.Samples, api.Sample{Sample: v, Timestamp: t})
		sum += float64(v)
	}
	n := len(d.Samples)
	avg, avgRate := sum/float64(n), 0.0
	if first := d.Samples[n-1]; newest > first.Timestamp {
		avgRate = float64(d.Samples[0].Sample-first.Sample) * 1000 / float64(newest-first.Timestamp)
	}
	d.Avg, d.AvgRate = &avg, &avgRate
}

// details are rate and samples of one number.
func (s *series) details(i int, current, now int64, w window) api.Details {
	d := api.Details{Rate: s.rate(i, current, now)}
	s.samples(&d, i, current, now, w)
	return d
}

// kind is all series of one kind of object.
type kind[K comparable] map[K]*series

func (k kind[K]) add(tick uint64, key K, now int64, row []int64) {
	s := k[key]
	if s == nil {
		s = new(series)
		k[key] = s
	}
	s.seen = tick
	s.add(now, row, keepObject)
}

// sweep forgets objects that are gone.
func (k kind[K]) sweep(tick uint64) {
	for key, s := range k {
		if s.seen != tick {
			delete(k, key)
		}
	}
}

// channelKey names a channel: the connection's name and the number.
type channelKey struct {
	conn   *broker.ConnInfo
	number uint16
}

// sampler writes counters down from time to time. Its goroutine is the Server's.
type sampler struct {
	b *broker.Broker // immutable

	mu        sync.RWMutex
	tick      uint64
	total     series
	vhosts    kind[string]
	queues    kind[*broker.Queue]
	exchanges kind[*broker.ExchangeStats]
	channels  kind[channelKey]
	conns     kind[*broker.ConnInfo]
}

func newSampler(b *broker.Broker) *sampler {
	return &sampler{
		b: b, vhosts: make(kind[string]), queues: make(kind[*broker.Queue]), exchanges: make(kind[*broker.ExchangeStats]),
		channels: make(kind[channelKey]), conns: make(kind[*broker.ConnInfo]),
	}
}

// run samples until quit.
func (s *sampler) run(quit <-chan struct{}) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		select {
		case <-quit:
			return
		case now := <-t.C:
			s.sample(now.UnixMilli())
		}
	}
}

// lengths are the first three numbers of a row of a queue, a vhost or all.
type lengths struct{ ready, unacked int }

func (l lengths) row(dst []int64) []int64 {
	return append(dst, int64(l.ready+l.unacked), int64(l.ready), int64(l.unacked))
}

const lengthFields = 3

// sample writes everything down once.
func (s *sampler) sample(now int64) {
	traffic := s.b.Traffic()
	sizes := make(map[string]lengths)
	var all lengths
	row := make([]int64, 0, 64)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick++
	for _, v := range s.b.VHosts() {
		var in lengths
		for _, q := range s.b.Queues(v) {
			c := q.Counts()
			in.ready += c.Ready
			in.unacked += c.Unacked
			row = lengths{c.Ready, c.Unacked}.row(row[:0])
			s.queues.add(s.tick, q, now, statsRow(row, &c.Stats))
		}
		for _, x := range s.b.Exchanges(v) {
			s.exchanges.add(s.tick, x.Stats, now, append(row[:0], int64(x.Stats.In.Load()), int64(x.Stats.Out.Load())))
		}
		sizes[v] = in
		all.ready += in.ready
		all.unacked += in.unacked
	}
	conns := s.b.Connections()
	for _, c := range conns {
		n := octetsOf(c.ConnInfo)
		s.conns.add(s.tick, c.ConnInfo, now, append(row[:0], int64(n.Received), int64(n.Sent)))
	}
	octets := octetsByVHost(conns)
	for v, stats := range traffic.VHosts {
		row = statsRow(sizes[v].row(row[:0]), stats)
		s.vhosts.add(s.tick, v, now, append(row, int64(octets[v].Received), int64(octets[v].Sent)))
	}
	for _, ch := range s.b.Channels() {
		s.channels.add(s.tick, channelKey{ch.Connection, ch.Number}, now, statsRow(row[:0], &ch.Stats))
	}
	total := traffic.Total()
	s.total.add(now, churnRow(statsRow(all.row(row[:0]), &total), s.b.Counters()), keepTotal)

	s.queues.sweep(s.tick)
	s.exchanges.sweep(s.tick)
	s.vhosts.sweep(s.tick)
	s.conns.sweep(s.tick)
	s.channels.sweep(s.tick)
}

// reset forgets all samples.
func (s *sampler) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = series{}
	clear(s.vhosts)
	clear(s.queues)
	clear(s.exchanges)
	clear(s.channels)
	clear(s.conns)
}

func octetsOf(c *broker.ConnInfo) broker.Octets {
	if c.Octets == nil {
		return broker.Octets{}
	}
	return c.Octets()
}

// The counters of message_stats in the order of a row. Those before publishFields are shown once something
// was published, the rest once something was delivered or asked for.
var statNames = [...]string{
	"publish", "confirm", "return_unroutable", "drop_unroutable",
	"get", "get_no_ack", "get_empty", "deliver", "deliver_no_ack", "deliver_get", "redeliver", "ack",
}

const publishFields = 4

func statsRow(row []int64, s *broker.MessageStats) []int64 {
	for _, n := range [...]uint64{
		s.Publish, s.Confirm, s.ReturnUnroutable, s.DropUnroutable,
		s.Get, s.GetNoAck, s.GetEmpty, s.Deliver, s.DeliverNoAck, s.Delivered(), s.Redeliver, s.Ack,
	} {
		row = append(row, int64(n))
	}
	return row
}

var churnNames = [...]string{
	"connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created", "queue_deleted",
}

func churnRow(row []int64, n *broker.Counters) []int64 {
	return append(row,
		int64(n.ConnectionsOpened.Load()), int64(n.ConnectionsClosed.Load()),
		int64(n.ChannelsOpened.Load()), int64(n.ChannelsClosed.Load()),
		int64(n.QueuesDeclared.Load()), int64(n.QueuesCreated.Load()), int64(n.QueuesDeleted.Load()))
}

// view is how one request looks at rates: one time, and the windows of its query.
type view struct {
	s                        *sampler
	now                      int64
	lengths, messages, bytes window
}

// maxAge is the oldest sample that can be asked for, in seconds.
const maxAge = 1 << 31

// rates reads the windows of the query.
func (r *request) rates() (*view, error) {
	v := &view{s: r.s.sampler, now: time.Now().UnixMilli()}
	for prefix, w := range map[string]*window{"lengths": &v.lengths, "msg_rates": &v.messages, "data_rates": &v.bytes} {
		age, e1 := strconv.Atoi(r.query(prefix + "_age"))
		incr, e2 := strconv.Atoi(r.query(prefix + "_incr"))
		if e1 != nil || e2 != nil {
			continue
		}
		if age <= 0 || incr <= 0 || age > maxAge || incr > maxAge {
			return nil, failed(400, "invalid_range_parameters", fmt.Sprintf("Invalid range parameters: age %d, incr %d", age, incr))
		}
		*w = window{int64(age) * 1000, int64(incr) * 1000}
	}
	return v, nil
}

// lengthsOf fills the lengths of a queue, a vhost or all.
func (v *view) lengthsOf(s *series, l lengths) api.Lengths {
	n := l.ready + l.unacked
	return api.Lengths{
		Messages: n, Ready: l.ready, Unacknowledged: l.unacked,
		MessagesDetails:       s.details(0, int64(n), v.now, v.lengths),
		ReadyDetails:          s.details(1, int64(l.ready), v.now, v.lengths),
		UnacknowledgedDetails: s.details(2, int64(l.unacked), v.now, v.lengths),
	}
}

// stats are message_stats: a group of counters is left out until one of it counted. onlyQueue leaves out
// what a queue does not know. first is where they begin in a row.
func (v *view) stats(s *series, first int, m *broker.MessageStats, onlyQueue bool) api.Stats {
	var buf [16]int64
	row := statsRow(buf[:0], m)
	published := m.Publish > 0
	delivered := m.Delivered() > 0 || m.GetEmpty > 0 || m.Ack > 0
	if !published && !delivered {
		return nil
	}
	list := make(api.Stats, 0, len(statNames))
	for i, name := range statNames {
		if i < publishFields && (!published || onlyQueue && i > 0) || i >= publishFields && !delivered {
			continue
		}
		list = append(list, api.Stat{Name: name, Total: uint64(row[i]), Details: s.details(first+i, row[i], v.now, v.messages)})
	}
	return list
}

// named are counters of which all are shown.
func (v *view) named(s *series, first int, names []string, row []int64, w window) api.Stats {
	list := make(api.Stats, len(names))
	for i, name := range names {
		list[i] = api.Stat{Name: name, Total: uint64(row[i]), Details: s.details(first+i, row[i], v.now, w)}
	}
	return list
}

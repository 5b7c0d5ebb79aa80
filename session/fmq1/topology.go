package fmq1

import (
	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// names checks that names fit in AMQP's short strings, and answers the request when one does not.
func (s *Session) names(rid uint64, names ...string) bool {
	for _, n := range names {
		if len(n) > wire.MaxName {
			s.fail(rid, faultOf(wire.SyntaxError, "a name of %d bytes is longer than %d", len(n), wire.MaxName))
			return false
		}
	}
	return true
}

// table reads arguments, and answers the request when AMQP cannot carry them. The table owns its bytes.
func (s *Session) table(rid uint64, raw wire.Map) (table.Table, bool) {
	t, err := wire.DecodeTable(raw)
	if err != nil {
		s.fail(rid, malformed(err))
		return nil, false
	}
	return t, true
}

func (s *Session) declareExchange(f wire.Frame) {
	var m wire.DeclareExchange
	if !s.decode(f, &m) || !s.names(m.RID, m.Name, m.Type) {
		return
	}
	args, ok := s.table(m.RID, m.Args)
	if !ok {
		return
	}
	e := s.conn.Load().DeclareExchange(&broker.ExchangeDeclare{
		Name: m.Name, Type: m.Type, Durable: m.Durable, AutoDelete: m.AutoDelete, Internal: m.Internal, Passive: m.Passive, Args: args,
	})
	if !s.failed(m.RID, e) {
		s.answer(wire.OK{RID: m.RID})
	}
}

func (s *Session) deleteExchange(f wire.Frame) {
	var m wire.DeleteExchange
	if !s.decode(f, &m) || !s.names(m.RID, m.Name) {
		return
	}
	if !s.failed(m.RID, s.conn.Load().DeleteExchange(m.Name, m.IfUnused)) {
		s.answer(wire.OK{RID: m.RID})
	}
}

func (s *Session) declareQueue(f wire.Frame) {
	var m wire.DeclareQueue
	if !s.decode(f, &m) || !s.names(m.RID, m.Name) {
		return
	}
	args, ok := s.table(m.RID, m.Args)
	if !ok {
		return
	}
	q, e := s.conn.Load().DeclareQueue(&broker.QueueDeclare{
		Name: m.Name, Durable: m.Durable, Exclusive: m.Exclusive, AutoDelete: m.AutoDelete, Passive: m.Passive, Args: args,
	})
	if !s.failed(m.RID, e) {
		s.answer(wire.OK{RID: m.RID, Name: q.Name, Messages: uint64(q.Messages), Consumers: uint64(q.Consumers)})
	}
}

func (s *Session) deleteQueue(f wire.Frame) {
	var m wire.DeleteQueue
	if !s.decode(f, &m) || !s.names(m.RID, m.Name) {
		return
	}
	n, e := s.conn.Load().DeleteQueue(m.Name, m.IfUnused, m.IfEmpty)
	if !s.failed(m.RID, e) {
		s.answer(wire.OK{RID: m.RID, Messages: uint64(n)})
	}
}

func (s *Session) purgeQueue(f wire.Frame) {
	var m wire.PurgeQueue
	if !s.decode(f, &m) || !s.names(m.RID, m.Name) {
		return
	}
	n, e := s.conn.Load().PurgeQueue(m.Name)
	if !s.failed(m.RID, e) {
		s.answer(wire.OK{RID: m.RID, Messages: uint64(n)})
	}
}

// bind handles bind and unbind.
func (s *Session) bind(f wire.Frame) {
	var m wire.Bind
	if !s.decode(f, &m) || !s.names(m.RID, m.Exchange, m.Queue, m.ToExchange, m.Key) {
		return
	}
	args, ok := s.table(m.RID, m.Args)
	if !ok {
		return
	}
	if (m.Queue == "") == (m.ToExchange == "") {
		s.fail(m.RID, faultOf(wire.SyntaxError, "exactly one of 'queue' and 'to_exchange' must be set"))
		return
	}
	c := s.conn.Load()
	var e *broker.Error
	switch {
	case f.Op == wire.OpBind && m.Queue != "":
		e = c.BindQueue(m.Queue, m.Exchange, m.Key, args)
	case f.Op == wire.OpBind:
		e = c.BindExchange(m.ToExchange, m.Exchange, m.Key, args)
	case m.Queue != "":
		e = c.UnbindQueue(m.Queue, m.Exchange, m.Key, args)
	default:
		e = c.UnbindExchange(m.ToExchange, m.Exchange, m.Key, args)
	}
	if !s.failed(m.RID, e) {
		s.answer(wire.OK{RID: m.RID})
	}
}

//! What a client knows, guarded by one lock that is never held over an await, and what frames do to it.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, Notify};
use tokio::time::Instant;

use crate::error::Error;
use crate::message::Message;
use crate::options::{ConnectOptions, Event};
use crate::publish::{Pending, Publishes};
use crate::topology::{Bind, DeclareExchange, DeclareQueue, Topology};
use crate::transport::Connection;
use crate::wire::{op, Encoder, Frame, Header};

/// How many bytes wait for the socket before publishers wait too; acknowledgements and requests do not, they are
/// bounded by credit and by callers.
pub(crate) const MAX_STAGED: usize = 1 << 20;
/// How many attempts to reconnect may find something exclusive in use: the broker may not have noticed yet that the
/// connection before is lost. After that it is another client's.
const MAX_LOCKED: u32 = 8;
/// Bodies from this size on keep the memory that they were received in; smaller ones are copied, so that one that is
/// kept does not keep its neighbours.
const SHARED_BODY: usize = 16 << 10;

/// Longer than anybody waits, and short enough to be added to the time.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(crate) const RESOURCE_LOCKED: u16 = 405;
const NOT_FOUND: u16 = 404;

/// What the client, its task, subscriptions and messages share.
pub(crate) struct Shared {
    pub(crate) options: ConnectOptions,
    state: Mutex<State>,
    /// There is something to write.
    pub(crate) wake: Notify,
    /// Something that calls wait for may have happened.
    pub(crate) changed: Notify,
}

/// A request that the broker answers.
#[derive(Clone)]
pub(crate) enum Request {
    DeclareExchange(DeclareExchange),
    DeleteExchange { name: String, if_unused: bool },
    DeclareQueue(DeclareQueue),
    DeleteQueue { name: String, if_unused: bool, if_empty: bool },
    PurgeQueue { name: String },
    Bind(Bind),
    Unbind(Bind),
    Subscribe { sub: u64 },
    Unsubscribe { sub: u64 },
    Get { queue: String, no_ack: bool },
}

/// The answer to a request.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) name: String,
    pub(crate) messages: u64,
    pub(crate) consumers: u64,
    pub(crate) message: Option<Message>,
}

struct Call {
    request: Request,
    /// Who waits; none for what the client does by itself.
    reply: Option<oneshot::Sender<Result<Reply, Error>>>,
}

impl Call {
    /// Nobody wants the answer any more.
    fn is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn finish(self, result: Result<Reply, Error>) {
        if let Some(reply) = self.reply {
            drop(reply.send(result)); // whoever waited may have given up
        }
    }
}

/// A connection that is there.
pub(crate) struct Link {
    pub(crate) max_frame: usize,
    since: Instant,
    /// A message was confirmed or a call answered over it.
    useful: bool,
}

/// A subscription, as its client knows it.
pub(crate) struct Sub {
    /// The first name of its queue.
    pub(crate) queue: String,
    pub(crate) prefetch: u32,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) tag: String,
    pub(crate) args: Vec<u8>,
    /// The broker has it: it is resumed over another connection.
    active: bool,
    /// Received and not handed out. Bounded by credit.
    pub(crate) received: VecDeque<Message>,
    /// Done since credit was granted last.
    processed: u32,
    /// Why no more messages come.
    pub(crate) ended: Option<Error>,
    /// Nobody receives any more: what comes until the broker knows is given back.
    abandoned: bool,
    pub(crate) waker: Option<Waker>,
}

impl Sub {
    pub(crate) fn new(queue: String, prefetch: u32, args: Vec<u8>) -> Self {
        Sub {
            queue,
            prefetch,
            no_ack: false,
            exclusive: false,
            tag: String::new(),
            args,
            active: false,
            received: VecDeque::new(),
            processed: 0,
            ended: None,
            abandoned: false,
            waker: None,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn end(&mut self, why: Error) {
        self.ended.get_or_insert(why);
        self.wake();
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// Why the client is closed; none while it is open.
    pub(crate) closed: Option<Error>,
    pub(crate) link: Option<Link>,
    pub(crate) conn_id: String,
    pub(crate) server: String,
    /// Why there is no connection.
    pub(crate) lost: Option<Error>,
    lost_at: Option<Instant>,
    locked: u32,
    /// Close is staged: nothing is behind it.
    pub(crate) closing: bool,
    /// The broker's close came: nothing is read any more.
    peer_done: bool,
    /// Frames for the socket.
    pub(crate) out: Vec<u8>,
    paused: bool,
    rid: u64,
    calls: BTreeMap<u64, Call>,
    last_sub: u64,
    pub(crate) subs: BTreeMap<u64, Sub>,
    pub(crate) publishes: Publishes,
    /// The subscription of each delivery without an ack, 0 for a get's. Bounded by credit and by callers of get.
    pub(crate) unacked: BTreeMap<u64, u64>,
    /// The last delivery tag of earlier connections; a tag is this and what the broker calls it.
    base: u64,
    last_tag: u64,
    pub(crate) topology: Topology,
    /// To be told when the lock is not held.
    pub(crate) events: Vec<Event>,
}

impl Shared {
    pub(crate) fn new(options: ConnectOptions) -> Self {
        Shared { options, state: Mutex::default(), wake: Notify::new(), changed: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tell(&self, events: Vec<Event>) {
        if let Some(handler) = &self.options.on_event {
            events.into_iter().for_each(|e| handler(e));
        }
    }

    /// Waits until `f` gives something; it is called whenever something changed.
    pub(crate) async fn until<T>(&self, mut f: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(t) = f(&mut self.lock()) {
                return t;
            }
            changed.await;
        }
    }

    /// Waits like until, for as long as a call may wait for a connection: `f` is called only while there is one.
    pub(crate) async fn connected<T>(&self, mut f: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let mut deadline = None;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut st = self.lock();
                st.usable()?;
                if st.link.is_some() && !st.peer_done {
                    deadline = None;
                    if let Some(t) = f(&mut st) {
                        return Ok(t);
                    }
                } else {
                    let wait = self.wait();
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
                    if Instant::now() >= deadline {
                        return Err(st.unreachable(wait));
                    }
                }
            }
            match deadline {
                None => changed.await,
                Some(deadline) => drop(tokio::time::timeout_at(deadline, changed).await),
            }
        }
    }

    /// How long calls wait for a connection.
    pub(crate) fn wait(&self) -> Duration {
        self.options.reconnect.as_ref().map_or(Duration::ZERO, |r| r.wait.min(FOREVER))
    }

    /// Sends a request and waits for its answer, over more than one connection if need be.
    pub(crate) async fn request(&self, request: Request) -> Result<Reply, Error> {
        let (tx, rx) = oneshot::channel();
        let mut call = Some((request, tx));
        self.connected(|st| {
            let (request, reply) = call.take()?;
            st.call(self, request, Some(reply));
            Some(())
        })
        .await?;
        rx.await.unwrap_or_else(|_| Err(self.lock().closed.clone().unwrap_or_else(|| Error::Closed(String::new()))))
    }

    /// Sends close behind what is staged. The client's task does the rest.
    pub(crate) fn begin_close(&self) {
        let mut st = self.lock();
        if st.closed.is_some() || st.closing {
            return;
        }
        if st.link.is_none() {
            st.fail(self, Error::Closed(String::new()));
            return;
        }
        Encoder::new(&mut st.out, op::CLOSE).uint("code", 200).str("msg", "bye").end(&[]);
        st.closing = true;
        self.wake.notify_one();
        self.changed.notify_waiters();
    }
}

impl State {
    /// The error for anything new.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match &self.closed {
            Some(e) => Err(e.clone()),
            None if self.closing => Err(Error::Closed(String::new())),
            None => Ok(()),
        }
    }

    /// Frames may be staged.
    pub(crate) fn live(&self) -> bool {
        self.link.is_some() && !self.closing && !self.peer_done
    }

    /// One more message may be published.
    pub(crate) fn has_room(&self) -> bool {
        !self.paused && self.out.len() < MAX_STAGED && self.publishes.has_room()
    }

    pub(crate) fn unreachable(&self, wait: Duration) -> Error {
        let why = self.lost.as_ref().map_or_else(String::new, |e| format!(": {e}"));
        Error::Closed(format!("no connection within {wait:?}{why}"))
    }

    fn call(&mut self, sh: &Shared, request: Request, reply: Option<oneshot::Sender<Result<Reply, Error>>>) {
        self.rid += 1;
        self.stage(self.rid, &request);
        self.calls.insert(self.rid, Call { request, reply });
        sh.wake.notify_one();
    }

    /// Stages a request, with the names that queues have now.
    fn stage(&mut self, rid: u64, request: &Request) {
        let (t, out) = (&self.topology, &mut self.out);
        match request {
            Request::DeclareExchange(e) => e.encode(rid, out),
            Request::DeleteExchange { name, if_unused } => {
                Encoder::new(out, op::DELETE_EXCHANGE)
                    .uint("rid", rid)
                    .str("name", name)
                    .bool("if_unused", *if_unused)
                    .end(&[]);
            }
            Request::DeclareQueue(q) => q.encode(rid, t.queue(&q.name), out),
            Request::DeleteQueue { name, if_unused, if_empty } => Encoder::new(out, op::DELETE_QUEUE)
                .uint("rid", rid)
                .str("name", t.queue(name))
                .bool("if_unused", *if_unused)
                .bool("if_empty", *if_empty)
                .end(&[]),
            Request::PurgeQueue { name } => {
                Encoder::new(out, op::PURGE_QUEUE).uint("rid", rid).str("name", t.queue(name)).end(&[])
            }
            Request::Bind(b) => b.encode(op::BIND, rid, t, out),
            Request::Unbind(b) => b.encode(op::UNBIND, rid, t, out),
            Request::Subscribe { sub } => {
                let Some(s) = self.subs.get(sub) else {
                    return;
                };
                Encoder::new(out, op::SUBSCRIBE)
                    .uint("rid", rid)
                    .uint("sub", *sub)
                    .str("queue", t.queue(&s.queue))
                    .uint("credit", s.prefetch.into())
                    .bool("no_ack", s.no_ack)
                    .bool("exclusive", s.exclusive)
                    .str("tag", &s.tag)
                    .raw("args", &s.args)
                    .end(&[]);
            }
            Request::Unsubscribe { sub } => {
                Encoder::new(out, op::UNSUBSCRIBE).uint("rid", rid).uint("sub", *sub).end(&[])
            }
            Request::Get { queue, no_ack } => {
                Encoder::new(out, op::GET)
                    .uint("rid", rid)
                    .str("queue", t.queue(queue))
                    .bool("no_ack", *no_ack)
                    .end(&[]);
            }
        }
    }

    /// Adds a subscription. It is known before it is asked for: deliveries come right behind the answer.
    pub(crate) fn add_sub(&mut self, sub: Sub) -> u64 {
        self.last_sub += 1;
        self.subs.insert(self.last_sub, sub);
        self.last_sub
    }

    /// Handles one frame. An error ends the connection.
    pub(crate) fn frame(&mut self, sh: &Arc<Shared>, frame: Frame) -> Result<(), Error> {
        let h = Header::decode(&frame.header)?;
        match frame.op {
            op::DELIVER => return self.delivered(sh, h, frame.payload),
            op::CONFIRM => {
                if !h.nack {
                    if let Some(link) = &mut self.link {
                        link.useful = true;
                    }
                }
                let result = if h.nack { Some(Error::Nacked { code: h.code, message: h.msg }) } else { None };
                if self.publishes.confirm(h.seq, h.upto, result) {
                    sh.changed.notify_waiters();
                }
            }
            op::RETURN => self.publishes.returned(h.seq),
            op::OK => {
                let reply = Reply { name: h.name, messages: h.messages, consumers: h.consumers, message: None };
                return self.answer(sh, h.rid, reply);
            }
            op::GET_OK => {
                let rid = h.rid;
                let message = self.message(sh, h, frame.payload, false);
                return self.answer(sh, rid, Reply { message: Some(message), ..Reply::default() });
            }
            op::ERROR => return self.refused(sh, h),
            op::CANCELLED => {
                if let Some(s) = self.subs.get_mut(&h.sub) {
                    let queue = s.queue.clone();
                    s.active = false;
                    s.end(Error::Cancelled { code: h.code, message: h.msg });
                    if h.code == NOT_FOUND {
                        self.topology.deleted_queue(&queue);
                    }
                }
            }
            op::FLOW => self.pause(sh, h.pause),
            op::PING if self.live() => {
                Encoder::new(&mut self.out, op::PONG).end(&[]);
                sh.wake.notify_one();
            }
            op::CLOSE => {
                if self.closing {
                    return Err(Error::Closed(String::new()));
                }
                Encoder::new(&mut self.out, op::CLOSE).uint("code", 200).end(&[]); // the task sends it at the end
                self.peer_done = true;
                return Err(Error::Server { code: h.code, message: h.msg, fatal: true });
            }
            _ => {} // an op of a later version
        }
        Ok(())
    }

    /// Whether what is staged should still be sent after the connection ended: the answer to the broker's close.
    pub(crate) fn owes_close(&self) -> bool {
        self.peer_done
    }

    fn answer(&mut self, sh: &Arc<Shared>, rid: u64, mut reply: Reply) -> Result<(), Error> {
        let Some(call) = self.calls.remove(&rid) else {
            return Err(Error::protocol(format!("the broker answers request {rid}, which there is not")));
        };
        if call.reply.is_some() {
            if let Some(link) = &mut self.link {
                link.useful = true;
            }
        }
        match &call.request {
            Request::DeclareExchange(e) => self.topology.declared_exchange(e),
            Request::DeleteExchange { name, .. } => self.topology.deleted_exchange(name),
            Request::DeclareQueue(q) => self.topology.declared_queue(q, &reply.name),
            Request::DeleteQueue { name, .. } => self.topology.deleted_queue(name),
            Request::Bind(b) => self.topology.bound(b),
            Request::Unbind(b) => self.topology.unbound(b),
            Request::Subscribe { sub } => {
                if let Some(s) = self.subs.get_mut(sub) {
                    s.active = !s.abandoned;
                }
            }
            Request::Unsubscribe { sub } => self.unsubscribed(sh, *sub),
            Request::Get { no_ack, .. } => {
                if let Some(m) = &mut reply.message {
                    m.no_ack = *no_ack;
                    if !no_ack {
                        self.unacked.insert(m.tag, 0);
                        if call.is_gone() {
                            let tag = m.tag;
                            self.give_back(sh, tag);
                        }
                    }
                }
            }
            Request::PurgeQueue { .. } => {}
        }
        call.finish(Ok(reply));
        Ok(())
    }

    fn refused(&mut self, sh: &Arc<Shared>, h: Header) -> Result<(), Error> {
        let e = Error::Server { code: h.code, message: h.msg, fatal: h.fatal };
        if let Some(call) = self.calls.remove(&h.rid) {
            if let Request::Subscribe { sub } = call.request {
                // One that was resumed has nobody who waits for the answer.
                if call.reply.is_none() && h.code == RESOURCE_LOCKED && self.locked_again() {
                    return Err(e);
                }
                if call.reply.is_some() {
                    self.subs.remove(&sub);
                } else if let (Some(s), Error::Server { code, message, .. }) = (self.subs.get_mut(&sub), &e) {
                    s.active = false;
                    s.end(Error::Cancelled { code: *code, message: message.clone() });
                }
            } else if call.reply.is_none() && !matches!(call.request, Request::Unsubscribe { .. }) {
                self.events.push(Event::Error(e.clone()));
            }
            call.finish(Err(e.clone()));
        }
        if h.fatal {
            return Err(e);
        }
        if h.rid == 0 {
            self.events.push(Event::Error(e));
        }
        sh.changed.notify_waiters();
        Ok(())
    }

    /// Counts an attempt that found something exclusive in use, and says whether to try again.
    pub(crate) fn locked_again(&mut self) -> bool {
        self.locked += 1;
        self.locked <= MAX_LOCKED
    }

    /// Has publishers wait, or go on.
    pub(crate) fn pause(&mut self, sh: &Shared, paused: bool) {
        if self.paused != paused {
            self.paused = paused;
            self.events.push(Event::Flow { paused });
            sh.changed.notify_waiters();
        }
    }

    fn message(&mut self, sh: &Arc<Shared>, h: Header, payload: Bytes, no_ack: bool) -> Message {
        let tag = self.base.saturating_add(h.tag);
        self.last_tag = self.last_tag.max(tag);
        Message {
            tag,
            redelivered: h.redelivered,
            exchange: h.exchange,
            routing_key: h.key,
            properties: h.props,
            headers: h.headers,
            body: if payload.len() < SHARED_BODY { Bytes::copy_from_slice(&payload) } else { payload },
            remaining: h.remaining,
            no_ack,
            shared: sh.clone(),
        }
    }

    fn delivered(&mut self, sh: &Arc<Shared>, h: Header, payload: Bytes) -> Result<(), Error> {
        let sub = h.sub;
        let Some((no_ack, abandoned)) = self.subs.get(&sub).map(|s| (s.no_ack, s.abandoned)) else {
            return Err(Error::protocol(format!("the broker delivers for subscription {sub}, which there is not")));
        };
        let m = self.message(sh, h, payload, no_ack);
        if !no_ack {
            self.unacked.insert(m.tag, sub);
        }
        if abandoned {
            if !no_ack {
                self.give_back(sh, m.tag);
            }
        } else if let Some(s) = self.subs.get_mut(&sub) {
            s.received.push_back(m);
            s.wake();
        }
        Ok(())
    }

    /// Requeues a delivery that nobody receives.
    fn give_back(&mut self, sh: &Shared, tag: u64) {
        if self.live() {
            drop(self.settle(sh, tag, false, false, true)); // it is live: there is no error
        }
    }

    /// Stages an ack or nack, and the credit that comes free.
    pub(crate) fn settle(
        &mut self,
        sh: &Shared,
        tag: u64,
        multiple: bool,
        ack: bool,
        requeue: bool,
    ) -> Result<(), Error> {
        self.usable()?;
        if !self.live() || tag != 0 && tag <= self.base {
            return Ok(()); // it is the broker's again
        }
        Encoder::new(&mut self.out, if ack { op::ACK } else { op::NACK })
            .uint("tag", tag.saturating_sub(self.base))
            .bool("multiple", multiple)
            .bool("requeue", requeue)
            .end(&[]);
        sh.wake.notify_one();
        if !multiple {
            if let Some(sub) = self.unacked.remove(&tag) {
                self.processed(sh, sub);
            }
            return Ok(());
        }
        while let Some(first) = self.unacked.first_entry() {
            if tag != 0 && *first.key() > tag {
                break;
            }
            let sub = first.remove();
            self.processed(sh, sub);
        }
        Ok(())
    }

    /// Counts a delivery as done and grants credit when an eighth of the prefetch is.
    fn processed(&mut self, sh: &Shared, sub: u64) {
        let live = self.live();
        let Some(s) = self.subs.get_mut(&sub) else {
            return;
        };
        s.processed += 1;
        if s.processed < s.prefetch.div_ceil(8) || s.ended.is_some() || !live {
            return;
        }
        Encoder::new(&mut self.out, op::CREDIT).uint("sub", sub).uint("credit", s.processed.into()).end(&[]);
        s.processed = 0;
        sh.wake.notify_one();
    }

    /// Hands out the next message of a subscription; its error when no more come, none when it has to wait.
    pub(crate) fn receive(&mut self, sh: &Shared, sub: u64) -> Option<Result<Message, Error>> {
        let s = self.subs.get_mut(&sub)?;
        let Some(m) = s.received.pop_front() else {
            return s.ended.clone().map(Err);
        };
        // What came over an earlier connection earns no credit: all of it was granted again.
        if s.no_ack && m.tag > self.base {
            self.processed(sh, sub);
        }
        Some(Ok(m))
    }

    /// The broker has ended a subscription as it was told to: what was not handed out goes back. With no_ack the
    /// broker has forgotten it, and it stays to be received.
    fn unsubscribed(&mut self, sh: &Shared, sub: u64) {
        let Some(s) = self.subs.get_mut(&sub) else {
            return;
        };
        s.active = false;
        s.end(Error::Unsubscribed);
        let (queue, abandoned) = (s.queue.clone(), s.abandoned);
        if !s.no_ack {
            for m in std::mem::take(&mut s.received) {
                self.give_back(sh, m.tag);
            }
        }
        if abandoned {
            self.subs.remove(&sub);
        }
        self.forget_queue(sub, &queue);
    }

    /// Forgets a queue that went with its last subscription.
    fn forget_queue(&mut self, sub: u64, queue: &str) {
        let used = self.subs.iter().any(|(id, s)| *id != sub && s.ended.is_none() && s.queue == queue);
        if !used && self.topology.is_auto_delete(queue) {
            self.topology.deleted_queue(queue);
        }
    }

    /// Nobody receives from a subscription any more.
    pub(crate) fn abandon(&mut self, sh: &Shared, sub: u64) {
        let live = self.live();
        let Some(s) = self.subs.get_mut(&sub) else {
            return;
        };
        if s.ended.is_some() || !live {
            let (queue, ended) = (s.queue.clone(), s.ended.is_some());
            let received = std::mem::take(&mut s.received);
            let no_ack = s.no_ack;
            self.subs.remove(&sub);
            if !no_ack {
                received.iter().for_each(|m| self.give_back(sh, m.tag));
            }
            if !ended {
                self.forget_queue(sub, &queue);
            }
            return;
        }
        s.abandoned = true;
        s.active = false;
        for m in std::mem::take(&mut s.received) {
            if !m.no_ack {
                self.give_back(sh, m.tag);
            }
        }
        self.call(sh, Request::Unsubscribe { sub }, None);
    }

    /// Stages a publish.
    pub(crate) fn publish(&mut self, sh: &Shared, mut p: Pending) {
        self.publishes.number(&mut p);
        self.out.extend_from_slice(&p.frame);
        if sh.options.reconnect.is_none() {
            p.frame = Vec::new();
        }
        self.publishes.add(p);
        sh.wake.notify_one();
    }

    /// A connection begins.
    pub(crate) fn start(&mut self, sh: &Shared, c: &Connection) {
        self.link = Some(Link { max_frame: c.max_frame, since: Instant::now(), useful: false });
        self.conn_id.clone_from(&c.id);
        self.server.clone_from(&c.server);
        self.lost = None;
        self.lost_at = None;
        sh.wake.notify_one();
        sh.changed.notify_waiters();
    }

    /// A connection ended; another will be made. It reports whether the pauses between attempts begin anew: else
    /// something that is sent each time may be what ends it.
    pub(crate) fn disconnected(&mut self, sh: &Shared, why: &Error, max_delay: Duration) -> bool {
        let Some(link) = self.link.take() else {
            return true;
        };
        let lived = link.since.elapsed() > max_delay;
        if lived {
            self.locked = 0;
        }
        self.lost = Some(why.clone());
        self.lost_at = Some(Instant::now());
        self.peer_done = false;
        self.out.clear();
        self.pause(sh, false);
        // What was delivered is the broker's again; what was asked for and published is asked and published again.
        self.base = self.last_tag;
        self.unacked.clear();
        self.subs.retain(|_, s| {
            s.processed = 0;
            if !s.no_ack {
                s.received.clear();
            }
            !s.abandoned
        });
        self.calls.retain(|_, call| !call.is_gone());
        sh.changed.notify_waiters();
        link.useful || lived
    }

    /// When those fail who have waited since the connection was lost.
    pub(crate) fn give_up_at(&self, wait: Duration) -> Instant {
        self.lost_at.unwrap_or_else(Instant::now) + wait
    }

    /// Fails the calls and publishes that have waited for a connection since it was lost.
    pub(crate) fn give_up(&mut self, sh: &Shared) {
        let why = self.unreachable(sh.wait());
        self.fail_waiting(&why);
        sh.changed.notify_waiters();
    }

    fn fail_waiting(&mut self, why: &Error) {
        for (_, call) in std::mem::take(&mut self.calls) {
            if let Request::Subscribe { sub } = call.request {
                if call.reply.is_some() {
                    self.subs.remove(&sub);
                }
            }
            call.finish(Err(why.clone()));
        }
        self.publishes.fail(why);
    }

    /// Has everything sent over a new connection that the broker has to know: bindings, subscriptions, requests
    /// and publishes without an answer, in this order.
    pub(crate) fn restore(&mut self, sh: &Shared, c: &Connection) {
        self.out.clear();
        self.calls.retain(|_, call| !call.is_gone());
        for b in self.topology.bindings() {
            self.call(sh, Request::Bind(b), None);
        }
        let resumed: Vec<u64> =
            self.subs.iter().filter(|(_, s)| s.active && s.ended.is_none()).map(|(id, _)| *id).collect();
        let unanswered: Vec<(u64, Request)> =
            self.calls.iter().filter(|(_, c)| c.reply.is_some()).map(|(rid, c)| (*rid, c.request.clone())).collect();
        for sub in resumed {
            self.call(sh, Request::Subscribe { sub }, None);
        }
        for (rid, request) in unanswered {
            self.stage(rid, &request);
        }
        self.publishes.again(&mut self.out, c.max_frame);
        self.start(sh, c);
    }

    /// Closes the client and tells everybody who waits.
    pub(crate) fn fail(&mut self, sh: &Shared, why: Error) {
        if self.closed.is_some() {
            return;
        }
        // What breaks after our close is its end.
        let why = if self.closing { Error::Closed(String::new()) } else { why.closed() };
        self.closed = Some(why.clone());
        self.link = None;
        self.out = Vec::new();
        self.fail_waiting(&why);
        for s in self.subs.values_mut() {
            if !s.no_ack {
                s.received.clear(); // they are delivered again, to whoever comes next
            }
            s.end(why.clone());
        }
        sh.wake.notify_one();
        sh.changed.notify_waiters();
    }
}

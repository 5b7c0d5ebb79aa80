//! Publishes that wait for their confirm, and publishing without waiting for each.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, OwnedSemaphorePermit, Semaphore};

use crate::client::Client;
use crate::error::Error;
use crate::message::PublishOptions;
use crate::wire;

/// How many bytes wait for their confirms before publishers wait.
const MAX_KEPT: usize = 64 << 20;

/// A publish that waits for its confirm.
pub(crate) struct Pending {
    /// Whole, to be sent again; empty when it is not.
    pub(crate) frame: Vec<u8>,
    size: usize,
    reply: oneshot::Sender<Result<(), Error>>,
    /// Of a publisher's: its place in the window.
    slot: Option<Slot>,
    /// It came back: what its confirm means.
    returned: bool,
}

struct Slot {
    first_error: Arc<Mutex<Option<Error>>>,
    _place: OwnedSemaphorePermit,
}

impl Pending {
    fn finish(self, result: Result<(), Error>) {
        if let (Some(slot), Err(e)) = (&self.slot, &result) {
            slot.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| e.clone());
        }
        drop(self.reply.send(result)); // whoever waited may have given up
    }
}

/// Publishes without a confirm, by their numbers. Bounded by MAX_KEPT, windows and callers.
#[derive(Default)]
pub(crate) struct Publishes {
    queue: VecDeque<Option<Pending>>, // none: refused already, ahead of older ones
    last: u64,                        // the number of the last one
    kept: usize,                      // bytes of their frames
}

impl Publishes {
    pub(crate) fn has_room(&self) -> bool {
        self.kept < MAX_KEPT
    }

    /// Gives a publish the next number.
    pub(crate) fn number(&mut self, p: &mut Pending) {
        self.last += 1;
        wire::set_seq(&mut p.frame, self.last);
    }

    pub(crate) fn add(&mut self, mut p: Pending) {
        p.size = p.frame.len();
        self.kept += p.size;
        self.queue.push_back(Some(p));
    }

    fn place(&mut self, seq: u64) -> Option<&mut Option<Pending>> {
        let first = self.last + 1 - self.queue.len() as u64;
        self.queue.get_mut(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// A mandatory message came back; its confirm follows.
    pub(crate) fn returned(&mut self, seq: u64) {
        if let Some(Some(p)) = self.place(seq) {
            p.returned = true;
        }
    }

    /// Ends one publish that was refused, or all up to a number. It reports whether publishers may go on.
    pub(crate) fn confirm(&mut self, seq: u64, upto: u64, refused: Option<Error>) -> bool {
        let full = !self.has_room();
        if let Some(e) = refused {
            if let Some(p) = self.place(seq).and_then(Option::take) {
                self.kept -= p.size;
                p.finish(Err(e));
            }
        } else {
            while !self.queue.is_empty() && self.last + 1 - self.queue.len() as u64 <= upto {
                if let Some(p) = self.queue.pop_front().flatten() {
                    self.kept -= p.size;
                    let result = if p.returned { Err(Error::Unroutable) } else { Ok(()) };
                    p.finish(result);
                }
            }
        }
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
        }
        full && self.has_room()
    }

    pub(crate) fn fail(&mut self, why: &Error) {
        self.kept = 0;
        for p in std::mem::take(&mut self.queue).into_iter().flatten() {
            p.finish(Err(why.clone()));
        }
    }

    /// Sends everything again over a new connection, under new numbers, but what nobody waits for.
    pub(crate) fn again(&mut self, out: &mut Vec<u8>, max_frame: usize) {
        self.last = 0;
        self.kept = 0;
        for mut p in std::mem::take(&mut self.queue).into_iter().flatten() {
            if p.slot.is_none() && p.reply.is_closed() {
                continue;
            }
            if p.frame.len() > 4 + max_frame {
                let e = too_large(p.frame.len(), max_frame);
                p.finish(Err(e));
                continue;
            }
            p.returned = false;
            self.number(&mut p);
            out.extend_from_slice(&p.frame);
            self.add(p);
        }
    }
}

fn too_large(len: usize, max_frame: usize) -> Error {
    Error::Invalid(format!("a message of {len} bytes does not fit in the broker's frames of {max_frame}"))
}

/// The confirm of a message that was published by a [`Publisher`]: a future, which may be dropped.
#[derive(Debug)]
pub struct Confirm(oneshot::Receiver<Result<(), Error>>);

impl Future for Confirm {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|r| r.unwrap_or_else(|_| Err(Error::Closed(String::new()))))
    }
}

/// Sends a message, behind those that were sent before.
pub(crate) async fn send(
    client: &Client,
    exchange: &str,
    key: &str,
    body: &[u8],
    options: &PublishOptions,
    slot: Option<(Arc<Mutex<Option<Error>>>, OwnedSemaphorePermit)>,
) -> Result<Confirm, Error> {
    for (what, name) in [("exchange", exchange), ("routing key", key)] {
        if name.len() > wire::MAX_NAME {
            return Err(Error::Invalid(format!(
                "the {what} of {} bytes is longer than {}",
                name.len(),
                wire::MAX_NAME
            )));
        }
    }
    let props = wire::encode_properties(&options.properties)?;
    let headers = wire::encode_map(&options.headers)?;
    if props.len() + headers.len() + 2 * wire::MAX_NAME + 64 > wire::MAX_HEADER {
        return Err(Error::Invalid(format!("properties and headers do not fit in {} bytes", wire::MAX_HEADER)));
    }
    let (reply, confirm) = oneshot::channel();
    let frame = wire::publish(exchange, key, options.mandatory, options.persistent, &props, &headers, body);
    let len = frame.len();
    let slot = slot.map(|(first_error, place)| Slot { first_error, _place: place });
    let mut pending = Some(Pending { frame, size: 0, reply, slot, returned: false });
    let sh = client.shared();
    sh.connected(|st| {
        let max_frame = st.link.as_ref().map_or(0, |l| l.max_frame);
        if len > 4 + max_frame {
            return Some(Err(too_large(len, max_frame)));
        }
        if !st.has_room() {
            return None;
        }
        st.publish(sh, pending.take()?);
        Some(Ok(()))
    })
    .await??;
    Ok(Confirm(confirm))
}

/// Publishes without waiting for each confirm. It keeps up to a number of messages in flight, in order.
///
/// [`Client::publisher`] makes one. Any number may share a client.
pub struct Publisher {
    client: Client,
    window: u32,
    places: Arc<Semaphore>,
    first_error: Arc<Mutex<Option<Error>>>,
}

impl Publisher {
    pub(crate) fn new(client: Client, window: u32) -> Self {
        // A semaphore holds less than a u32 on small machines.
        let window = window.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u32);
        Publisher { client, window, places: Arc::new(Semaphore::new(window as usize)), first_error: Arc::default() }
    }

    /// Sends a persistent message without waiting for its confirm; it waits only for a place in the window, for the
    /// socket when the broker reads too slowly, and while the broker asks publishers to pause.
    ///
    /// An error says that the message was not sent. What becomes of a sent one is told by its [`Confirm`], which may
    /// be dropped, and by [`flush`](Publisher::flush).
    pub async fn publish(&self, exchange: &str, routing_key: &str, body: impl AsRef<[u8]>) -> Result<Confirm, Error> {
        self.publish_with(exchange, routing_key, body, &PublishOptions::default()).await
    }

    /// [`publish`](Publisher::publish) with options.
    pub async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        options: &PublishOptions,
    ) -> Result<Confirm, Error> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| Error::Closed(String::new()))?;
        send(&self.client, exchange, routing_key, body.as_ref(), options, Some((self.first_error.clone(), place))).await
    }

    /// Waits until every message that was sent is confirmed or refused. It gives the first of their errors since the
    /// last flush.
    pub async fn flush(&self) -> Result<(), Error> {
        drop(self.places.acquire_many(self.window).await); // the semaphore is never closed
        match self.first_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// How many messages wait for their confirm.
    pub fn in_flight(&self) -> usize {
        self.window as usize - self.places.available_permits()
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("window", &self.window)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::client::Client;
use crate::error::Error;
use crate::message::Message;
use crate::state::Request;

/// Receives the messages of a queue. Credit is granted by itself: an eighth of the prefetch each time that an eighth
/// of it was acknowledged, or with `no_ack` handed out.
///
/// Over a new connection it goes on by itself. What it had received and not handed out is dropped then: the broker
/// delivers it again. With `no_ack` it is kept, because nobody else has it.
///
/// Dropping it unsubscribes, without waiting for the broker.
pub struct Subscription {
    client: Client,
    id: u64,
    ended: Option<Error>,
}

impl Subscription {
    pub(crate) fn new(client: Client, id: u64) -> Self {
        Subscription { client, id, ended: None }
    }

    /// Waits for a message; none when no more come (see [`error`](Subscription::error)). Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Message> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Why [`next`](Subscription::next) gave nothing: [`Error::Cancelled`] when the broker ended the subscription,
    /// [`Error::Unsubscribed`], or [`Error::Closed`] when the client is.
    pub fn error(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    /// The queue's name. That of a queue which the broker named is another one after a reconnection.
    pub fn queue(&self) -> String {
        let st = self.client.shared().lock();
        st.subs.get(&self.id).map_or_else(String::new, |s| st.topology.queue(&s.queue).to_owned())
    }

    /// Ends the subscription. Messages that were received but not handed out go back to the queue; with `no_ack`,
    /// [`next`](Subscription::next) gives them still. Those that were handed out may still be settled.
    pub async fn unsubscribe(&mut self) -> Result<(), Error> {
        self.client.request(&[], Request::Unsubscribe { sub: self.id }).await.map(drop)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        let sh = self.client.shared();
        let mut st = sh.lock();
        match st.receive(sh, self.id) {
            Some(Ok(m)) => Poll::Ready(Some(m)),
            Some(Err(e)) => {
                self.ended = Some(e);
                Poll::Ready(None)
            }
            None => {
                if let Some(s) = st.subs.get_mut(&self.id) {
                    s.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Stream for Subscription {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        self.poll(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let sh = self.client.shared();
        sh.lock().abandon(sh, self.id);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("queue", &self.queue()).field("ended", &self.ended).finish_non_exhaustive()
    }
}

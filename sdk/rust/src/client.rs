use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::link::{self, End};
use crate::message::{Message, PublishOptions};
use crate::options::{ConnectOptions, DeleteOptions, ExchangeOptions, QueueOptions, SubscribeOptions};
use crate::publish::{self, Publisher};
use crate::state::{Reply, Request, Shared, Sub};
use crate::subscription::Subscription;
use crate::topology::{Bind, DeclareExchange, DeclareQueue};
use crate::transport;
use crate::value::Map;
use crate::wire;

/// A connection to a broker, which is made again when it is lost. Clones are the same connection.
///
/// It needs a tokio runtime, in which a task of its own works for it. The connection ends with
/// [`close`](Client::close), or when the last clone, subscription and publisher are dropped.
///
/// Calls wait for a connection while there is none, and fail with [`Error::Closed`] after
/// [`Reconnect::wait`](crate::Reconnect::wait). A call whose future is dropped may have been sent nevertheless.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// Ends with the client's task.
    task: tokio::sync::Mutex<oneshot::Receiver<()>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// What the broker says of a declared queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    /// Its name, also when the broker chose it.
    pub name: String,
    /// How many messages are ready.
    pub messages: u64,
    /// How many consumers it has.
    pub consumers: u64,
}

impl Client {
    /// Connects to the broker that a URL names (see [`ConnectOptions::from_url`]).
    ///
    /// Errors: [`Error::Invalid`] for a bad URL, [`Error::Server`] when the broker refuses the login (403) or the vhost
    /// (530), else [`Error::Io`]. Only a connection that was there once is made again.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_with(ConnectOptions::from_url(url)?).await
    }

    /// Connects as the options say.
    pub async fn connect_with(options: ConnectOptions) -> Result<Client, Error> {
        let connection = transport::open(&options).await?;
        let shared = Arc::new(Shared::new(options));
        shared.lock().start(&shared, &connection);
        let (ended, task) = oneshot::channel();
        tokio::spawn(link::run(End(shared.clone()), connection, ended));
        Ok(Client(Arc::new(Handle { shared, task: task.into() })))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The connection's name, as the management API shows it; another one after a reconnection.
    pub fn conn_id(&self) -> String {
        self.shared().lock().conn_id.clone()
    }

    /// The broker's name and version.
    pub fn server(&self) -> String {
        self.shared().lock().server.clone()
    }

    /// Waits until the client is closed: by [`close`](Client::close), or by the loss of a connection that is not made
    /// again. The error says why.
    pub async fn closed(&self) -> Error {
        self.shared().until(|st| st.closed.clone()).await
    }

    /// Ends the connection in order: what was sent arrives, and everything that still waits fails with
    /// [`Error::Closed`]. Publishes whose confirm has not come are among those: flush publishers before. It waits for
    /// the broker's answer for up to 5 s. Calling it again does nothing.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared().begin_close();
        let mut task = self.0.task.lock().await;
        if !task.is_terminated() {
            drop((&mut *task).await); // an error says that it is gone too
        }
        Ok(())
    }

    /// Makes a queue, or checks that the existing one is the same (406 otherwise). An empty name has the broker choose
    /// one, which is in the result.
    pub async fn declare_queue(&self, name: &str, options: QueueOptions) -> Result<Queue, Error> {
        let request = Request::DeclareQueue(DeclareQueue {
            name: name.into(),
            durable: options.durable,
            exclusive: options.exclusive,
            auto_delete: options.auto_delete,
            passive: options.passive,
            args: arguments(&options.args)?,
        });
        let r = self.request(&[name], request).await?;
        Ok(Queue { name: r.name, messages: r.messages, consumers: r.consumers })
    }

    /// Deletes a queue and gives how many messages it had. One that is missing is no error.
    pub async fn delete_queue(&self, name: &str, options: DeleteOptions) -> Result<u64, Error> {
        let DeleteOptions { if_unused, if_empty } = options;
        let request = Request::DeleteQueue { name: name.into(), if_unused, if_empty };
        Ok(self.request(&[name], request).await?.messages)
    }

    /// Removes the ready messages of a queue and gives how many there were.
    pub async fn purge_queue(&self, name: &str) -> Result<u64, Error> {
        Ok(self.request(&[name], Request::PurgeQueue { name: name.into() }).await?.messages)
    }

    /// Makes an exchange of a kind, `direct`, `fanout`, `topic` or `headers`, or checks that the existing one is the
    /// same (406 otherwise).
    pub async fn declare_exchange(&self, name: &str, kind: &str, options: ExchangeOptions) -> Result<(), Error> {
        let request = Request::DeclareExchange(DeclareExchange {
            name: name.into(),
            kind: kind.into(),
            durable: options.durable,
            auto_delete: options.auto_delete,
            internal: options.internal,
            passive: options.passive,
            args: arguments(&options.args)?,
        });
        self.request(&[name, kind], request).await.map(drop)
    }

    /// Deletes an exchange; with `if_unused` only when it has no bindings. One that is missing is no error.
    pub async fn delete_exchange(&self, name: &str, if_unused: bool) -> Result<(), Error> {
        self.request(&[name], Request::DeleteExchange { name: name.into(), if_unused }).await.map(drop)
    }

    /// Has messages of an exchange that match a key go to a queue.
    pub async fn bind_queue(&self, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
        self.bind_queue_with(queue, exchange, key, Map::new()).await
    }

    /// [`bind_queue`](Client::bind_queue) with arguments, for a headers exchange.
    pub async fn bind_queue_with(&self, queue: &str, exchange: &str, key: &str, args: Map) -> Result<(), Error> {
        self.bind(Request::Bind, queue, "", exchange, key, &args).await
    }

    /// Takes a binding away. One that is missing is no error.
    pub async fn unbind_queue(&self, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
        self.unbind_queue_with(queue, exchange, key, Map::new()).await
    }

    /// [`unbind_queue`](Client::unbind_queue) with arguments: those of the binding.
    pub async fn unbind_queue_with(&self, queue: &str, exchange: &str, key: &str, args: Map) -> Result<(), Error> {
        self.bind(Request::Unbind, queue, "", exchange, key, &args).await
    }

    /// Has messages of an exchange that match a key go to another exchange as well.
    pub async fn bind_exchange(&self, destination: &str, source: &str, key: &str) -> Result<(), Error> {
        self.bind_exchange_with(destination, source, key, Map::new()).await
    }

    /// [`bind_exchange`](Client::bind_exchange) with arguments, for a headers exchange.
    pub async fn bind_exchange_with(&self, destination: &str, source: &str, key: &str, args: Map) -> Result<(), Error> {
        self.bind(Request::Bind, "", destination, source, key, &args).await
    }

    /// Takes a binding between exchanges away. One that is missing is no error.
    pub async fn unbind_exchange(&self, destination: &str, source: &str, key: &str) -> Result<(), Error> {
        self.unbind_exchange_with(destination, source, key, Map::new()).await
    }

    /// [`unbind_exchange`](Client::unbind_exchange) with arguments: those of the binding.
    pub async fn unbind_exchange_with(
        &self,
        destination: &str,
        source: &str,
        key: &str,
        args: Map,
    ) -> Result<(), Error> {
        self.bind(Request::Unbind, "", destination, source, key, &args).await
    }

    async fn bind(
        &self,
        request: fn(Bind) -> Request,
        queue: &str,
        to_exchange: &str,
        exchange: &str,
        key: &str,
        args: &Map,
    ) -> Result<(), Error> {
        let b = Bind {
            exchange: exchange.into(),
            queue: queue.into(),
            to_exchange: to_exchange.into(),
            key: key.into(),
            args: arguments(args)?,
        };
        self.request(&[queue, to_exchange, exchange, key], request(b)).await.map(drop)
    }

    /// Sends a persistent message and waits until the broker has confirmed it. While the broker asks publishers to
    /// pause, it waits for that too. The default exchange, `""`, routes to the queue that the key names.
    ///
    /// When the connection is lost before the confirm, the message is sent again over the next one; it may then be in
    /// its queues twice.
    pub async fn publish(&self, exchange: &str, routing_key: &str, body: impl AsRef<[u8]>) -> Result<(), Error> {
        self.publish_with(exchange, routing_key, body, PublishOptions::default()).await
    }

    /// [`publish`](Client::publish) with options. A mandatory message that no queue receives is
    /// [`Error::Unroutable`], one that the broker refuses [`Error::Nacked`].
    pub async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        body: impl AsRef<[u8]>,
        options: PublishOptions,
    ) -> Result<(), Error> {
        publish::send(self, exchange, routing_key, body.as_ref(), &options, None).await?.await
    }

    /// Makes a publisher that keeps up to `window` messages in flight.
    pub fn publisher(&self, window: u32) -> Publisher {
        Publisher::new(self.clone(), window)
    }

    /// Begins to receive messages from a queue.
    pub async fn subscribe(&self, queue: &str, options: SubscribeOptions) -> Result<Subscription, Error> {
        check(&[queue, &options.tag])?;
        let args = arguments(&options.args)?;
        let sh = self.shared();
        let id = {
            let mut st = sh.lock();
            let first = st.topology.first(queue).to_owned();
            let mut sub = Sub::new(first, options.prefetch.max(1), args);
            (sub.no_ack, sub.exclusive, sub.tag) = (options.no_ack, options.exclusive, options.tag);
            st.add_sub(sub)
        };
        // Dropped on an error, or with this future, it undoes what was done.
        let subscription = Subscription::new(self.clone(), id);
        self.request(&[], Request::Subscribe { sub: id }).await?;
        Ok(subscription)
    }

    /// Takes one message from a queue; none when it is empty. A [`Subscription`] is much cheaper for more than a few.
    /// With `no_ack` the message counts as acknowledged once sent.
    pub async fn get(&self, queue: &str, no_ack: bool) -> Result<Option<Message>, Error> {
        Ok(self.request(&[queue], Request::Get { queue: queue.into(), no_ack }).await?.message)
    }

    /// Acknowledges a delivery by its tag, with `multiple` every earlier one of the connection too; tag 0 with
    /// `multiple` is all of them. An unknown tag is told by the broker as an [`Event::Error`](crate::Event); one of a
    /// connection that was lost is ignored. [`Message::ack`] is simpler.
    pub fn ack(&self, tag: u64, multiple: bool) -> Result<(), Error> {
        self.shared().lock().settle(self.shared(), tag, multiple, true, false)
    }

    /// Refuses deliveries like [`ack`](Client::ack) acknowledges them.
    pub fn nack(&self, tag: u64, multiple: bool, requeue: bool) -> Result<(), Error> {
        self.shared().lock().settle(self.shared(), tag, multiple, false, requeue)
    }

    pub(crate) async fn request(&self, names: &[&str], request: Request) -> Result<Reply, Error> {
        check(names)?;
        self.shared().request(request).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("conn_id", &self.conn_id()).finish_non_exhaustive()
    }
}

fn check(names: &[&str]) -> Result<(), Error> {
    match names.iter().find(|n| n.len() > wire::MAX_NAME) {
        Some(name) => Err(Error::Invalid(format!("a name of {} bytes is longer than {}", name.len(), wire::MAX_NAME))),
        None => Ok(()),
    }
}

fn arguments(args: &Map) -> Result<Vec<u8>, Error> {
    let b = wire::encode_map(args)?;
    if b.len() + 4 * wire::MAX_NAME + 128 > wire::MAX_HEADER {
        return Err(Error::Invalid(format!("the arguments do not fit in {} bytes", wire::MAX_HEADER)));
    }
    Ok(b)
}

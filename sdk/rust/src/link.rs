//! The client's task: it reads and writes on one connection after the other.

use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, sleep_until, timeout};

use crate::error::Error;
use crate::options::{Event, Reconnect};
use crate::state::{Shared, MAX_STAGED, RESOURCE_LOCKED};
use crate::topology::Declaration;
use crate::transport::{self, Connection, Reader, Writer};
use crate::wire::{op, Encoder, Frame, Header};

/// How long the end of a connection waits for the broker's close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it then waits for the socket.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How many declarations are sent before their answers are read.
const DECLARE_BATCH: usize = 100;
/// What a write should have: below it other tasks get a chance to add to it first.
const MIN_WRITE: usize = 16 << 10;

/// Closes the client when its task ends, even if that is because its runtime does, and before it began.
pub(crate) struct End(pub(crate) Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().fail(&self.0, Error::Closed("the task of the client ended".into()));
    }
}

/// Runs until the client is closed.
pub(crate) async fn run(end: End, mut connection: Connection, ended: oneshot::Sender<()>) {
    let sh = &end.0;
    let mut delay = Duration::ZERO;
    loop {
        let why = drive(sh, &mut connection).await;
        drop(connection);
        if !lost(sh, &why, &mut delay) {
            break;
        }
        match reconnect(sh, &mut delay).await {
            Some(c) => connection = c,
            None => break,
        }
    }
    let _ = ended.send(()); // perhaps nobody waits
}

/// Reads and writes until the connection ends.
async fn drive(sh: &Arc<Shared>, c: &mut Connection) -> Error {
    let overdue = async {
        sh.until(|st| st.closing.then_some(())).await;
        sleep(CLOSE_TIMEOUT).await;
    };
    let why = tokio::select! {
        e = read(sh, &mut c.reader, c.heartbeat) => e,
        e = write(sh, &mut c.writer, c.heartbeat) => e,
        () = overdue => Error::Closed("the broker did not answer close".into()),
    };
    let end = async {
        if sh.lock().owes_close() && c.writer.send().await.is_ok() {
            c.writer.take(&mut sh.lock().out);
            drop(c.writer.send().await); // it is over in any case
        }
        c.writer.shutdown().await;
    };
    drop(timeout(SHUTDOWN_TIMEOUT, end).await);
    why
}

/// Handles what arrives, one lock for all that came with a read.
async fn read(sh: &Arc<Shared>, reader: &mut Reader, heartbeat: Duration) -> Error {
    loop {
        let (result, events) = {
            let mut st = sh.lock();
            let result = loop {
                match reader.next() {
                    Ok(Some(frame)) => {
                        if let Err(e) = st.frame(sh, frame) {
                            break Err(e);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            (result, std::mem::take(&mut st.events))
        };
        sh.tell(events);
        if let Err(e) = result {
            return e;
        }
        let filled = if heartbeat.is_zero() {
            reader.fill().await
        } else {
            timeout(2 * heartbeat, reader.fill())
                .await
                .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no heartbeat from the broker").into()))
        };
        if let Err(e) = filled {
            return e;
        }
    }
}

/// Writes what is staged, as much as there is at once, and a ping when there is nothing for long.
async fn write(sh: &Shared, writer: &mut Writer, heartbeat: Duration) -> Error {
    loop {
        if let Err(e) = writer.send().await {
            return e;
        }
        let staged = sh.lock().out.len();
        if staged == 0 {
            if heartbeat.is_zero() {
                sh.wake.notified().await;
            } else if timeout(heartbeat / 2, sh.wake.notified()).await.is_err() {
                let mut st = sh.lock();
                if st.live() && st.out.is_empty() {
                    Encoder::new(&mut st.out, op::PING).end(&[]);
                }
            }
            continue;
        }
        if staged < MIN_WRITE {
            // Tasks that are about to send get to do so: a system call costs more than the turn.
            tokio::task::yield_now().await;
        }
        let mut st = sh.lock();
        let full = st.out.len() >= MAX_STAGED;
        writer.take(&mut st.out);
        drop(st);
        if full {
            sh.changed.notify_waiters();
        }
    }
}

/// Handles the end of a connection, and says whether another is to be made.
fn lost(sh: &Shared, why: &Error, delay: &mut Duration) -> bool {
    let mut st = sh.lock();
    let Some(r) = sh.options.reconnect.as_ref().filter(|_| !st.closing && st.closed.is_none()) else {
        st.fail(sh, why.clone());
        return false;
    };
    if st.disconnected(sh, why, r.max_delay) {
        *delay = Duration::ZERO;
    }
    let mut events = std::mem::take(&mut st.events);
    drop(st);
    events.push(Event::Disconnected(why.clone()));
    sh.tell(events);
    true
}

/// Makes a connection, however long it takes. None: the client is closed.
async fn reconnect(sh: &Arc<Shared>, delay: &mut Duration) -> Option<Connection> {
    let r = sh.options.reconnect.as_ref()?;
    // Those who waited for an answer when the connection was lost wait no longer than others.
    let give_up_at = sh.lock().give_up_at(sh.wait());
    let give_up = async {
        sleep_until(give_up_at).await;
        sh.lock().give_up(sh);
        pending::<()>().await;
    };
    tokio::select! {
        c = attempts(sh, r, delay) => c,
        _ = sh.until(|st| st.closed.clone()) => None,
        () = give_up => None,
    }
}

async fn attempts(sh: &Arc<Shared>, r: &Reconnect, delay: &mut Duration) -> Option<Connection> {
    let mut failed = 0;
    loop {
        *delay = delay.saturating_mul(2).min(r.max_delay).max(r.min_delay);
        sleep(shortened(*delay)).await;
        let result = attempt(sh).await;
        let mut st = sh.lock();
        if let Err(e) = &result {
            failed += 1;
            st.lost = Some(e.clone());
            st.pause(sh, false);
            if r.max_attempts.is_some_and(|max| failed >= max) {
                st.fail(sh, Error::Closed(format!("{failed} attempts to reconnect failed: {e}")));
            }
        }
        let mut events = std::mem::take(&mut st.events);
        drop(st);
        if result.is_ok() {
            events.push(Event::Reconnected);
        }
        sh.tell(events);
        if let Ok(c) = result {
            return Some(c);
        }
    }
}

/// Up to a fifth less, so that not all clients of a broker come at once.
fn shortened(d: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    d - d / 5 * random as u32 / 1024
}

/// Tries once to make a connection that is as the one before was.
async fn attempt(sh: &Arc<Shared>) -> Result<Connection, Error> {
    let mut c = transport::open(&sh.options).await?;
    match timeout(sh.options.timeout, redeclare(sh, &mut c)).await {
        Ok(result) => result?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the broker does not answer declarations").into()),
    }
    let mut st = sh.lock();
    st.usable()?;
    st.restore(sh, &c);
    Ok(c)
}

/// Declares exchanges and queues again, before anything else is sent. What the broker refuses is an event; the
/// attempt fails only when something exclusive is still in use.
async fn redeclare(sh: &Arc<Shared>, c: &mut Connection) -> Result<(), Error> {
    let list = sh.lock().topology.declarations();
    for batch in list.chunks(DECLARE_BATCH) {
        let mut requests = Vec::new();
        for (i, d) in batch.iter().enumerate() {
            d.encode(i as u64 + 1, &mut requests);
        }
        c.ask(requests, batch.len(), |frame| redeclared(sh, batch, &frame)).await?;
    }
    Ok(())
}

/// Handles a frame that comes between declarations and their answers, and says whether it is one.
fn redeclared(sh: &Arc<Shared>, batch: &[Declaration], frame: &Frame) -> Result<bool, Error> {
    let h = Header::decode(&frame.header)?;
    let mut st = sh.lock();
    match frame.op {
        op::OK => {
            let declared = usize::try_from(h.rid).ok().and_then(|rid| batch.get(rid.checked_sub(1)?));
            match declared {
                Some(Declaration::Queue(first, _)) => st.topology.rename(first, &h.name),
                Some(Declaration::Exchange(_)) => {}
                None => {
                    return Err(Error::protocol(format!("the broker answers request {}, which there is not", h.rid)))
                }
            }
            Ok(true)
        }
        op::ERROR => {
            let e = Error::Server { code: h.code, message: h.msg, fatal: h.fatal };
            if h.fatal || h.code == RESOURCE_LOCKED && st.locked_again() {
                return Err(e);
            }
            st.events.push(Event::Error(e));
            Ok(h.rid != 0)
        }
        op::FLOW => {
            st.pause(sh, h.pause);
            Ok(false)
        }
        op::CLOSE => Err(Error::Server { code: h.code, message: h.msg, fatal: true }),
        _ => Ok(false),
    }
}

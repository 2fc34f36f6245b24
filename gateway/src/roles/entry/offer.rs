//! Requests the offer of an exit on behalf of a client of the admin port.
//!
//! [`Offers`] runs on the admin thread and queries one worker after another, since any worker may
//! have the session. [`answer`] runs on each worker and opens a stream as for a client. The
//! stream's local end is a pair of Unix sockets. The text is not interpreted. Bounds: one request
//! at a time, one queued request per worker, [`OFFER_BYTES_MAX`] bytes, [`PATIENCE`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_gateway_config::{OFFER_BYTES_MAX, OFFER_TARGET};
use muxtunnel_proto::{OpenError, Priority};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::Entry;
use crate::base::closing::Reason;
use crate::base::printable::Printable;
use crate::ingress::listener::answer::Answer;
use crate::io::local_socket::LocalSocket;
use crate::session::mux::OpenEnd;
use crate::stream::account::Local;
use crate::stream::early_data::Connection;

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Receives a worker's answer.
pub(crate) type Asker = oneshot::Sender<Result<Vec<u8>, NoOffer>>;

/// Why no offer was received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoOffer {
    #[error("another request is in progress; try again later")]
    Busy,
    #[error("no session with an exit is established")]
    NoSession,
    #[error("cannot open a stream to the exit: {0}")]
    NotOpened(OpenError),
    #[error("cannot open a stream to the exit: {0}")]
    NoSocket(std::io::Error),
    #[error("the exit is shutting down and accepts no more streams")]
    GoingAway,
    #[error("the exit refused the request: {0}")]
    Refused(String),
    #[error("the stream was cut before the exit answered")]
    Abandoned,
    #[error("the stream was cut after {bytes} bytes: {reason}")]
    Cut { bytes: usize, reason: &'static str },
    #[error("the offer of the exit is longer than {OFFER_BYTES_MAX} bytes")]
    TooLong,
    #[error("the exit did not send its whole offer within {} s", PATIENCE.as_secs())]
    TimedOut,
}

impl NoOffer {
    /// Whether the error concerns only this worker's session, so that another worker may succeed at
    /// once.
    const fn is_of_this_session(&self) -> bool {
        matches!(
            self,
            Self::NoSession | Self::NotOpened(_) | Self::NoSocket(_) | Self::GoingAway
        )
    }
}

/// The admin thread's channels to the workers.
pub(crate) struct Offers {
    workers: Vec<mpsc::Sender<Asker>>,
    /// Held by the request in progress.
    turn: Mutex<()>,
}

impl Offers {
    /// Creates the channels for `workers` workers. Also returns the receivers for the workers.
    pub(crate) fn new(workers: usize) -> (Self, Vec<mpsc::Receiver<Asker>>) {
        let (workers, asked) = (0..workers).map(|_| mpsc::channel(1)).unzip();
        let turn = Mutex::default();
        (Self { workers, turn }, asked)
    }

    /// Fetches the offer of an exit.
    ///
    /// # Errors
    /// [`NoOffer`].
    pub(crate) async fn fetch(&self) -> Result<Vec<u8>, NoOffer> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Err(NoOffer::Busy);
        };
        let asked = tokio::time::timeout(PATIENCE, self.ask()).await;
        asked.unwrap_or(Err(NoOffer::TimedOut))
    }

    async fn ask(&self) -> Result<Vec<u8>, NoOffer> {
        let mut problem = NoOffer::NoSession;
        for worker in &self.workers {
            let (asker, answer) = oneshot::channel();
            // A send error means that the worker shuts down, so it has no session for new streams.
            if worker.send(asker).await.is_err() {
                continue;
            }
            match answer.await {
                Ok(Err(error)) if error.is_of_this_session() => problem = error,
                Ok(answer) => return answer,
                Err(_) => {}
            }
        }
        Err(problem)
    }
}

/// Answers requests one after another until the senders are dropped. If the requester gives up, the
/// stream ends.
pub(super) async fn answer(entry: &Entry, mut asked: mpsc::Receiver<Asker>) {
    while let Some(mut asker) = asked.recv().await {
        let answer = tokio::select! {
            answer = fetch(entry) => answer,
            () = asker.closed() => continue,
        };
        let _ = asker.send(answer);
    }
}

async fn fetch(entry: &Entry) -> Result<Vec<u8>, NoOffer> {
    let session = entry.links.borrow().best().ok_or(NoOffer::NoSession)?;
    let (near, far) = UnixStream::pair().map_err(NoOffer::NoSocket)?;
    let url: Rc<str> = format!("tcp://{OFFER_TARGET}").into();
    let (ended, end) = oneshot::channel();
    let connection = Connection {
        socket: Box::new(LocalSocket::Unix(near)),
        local: Local::Own {
            target: Rc::clone(&url),
            ended: RefCell::new(Some(ended)),
        },
        early: Vec::new(),
        answer: Answer::None,
        source: None,
    };
    let refusal = Rc::new(RefCell::new(None));
    let refused = Rc::clone(&refusal);
    let refused = Box::new(move |end| {
        refused.replace(Some(match end {
            OpenEnd::Refused(refusal) => {
                NoOffer::Refused(Printable(&refusal.description).to_string())
            }
            OpenEnd::Abandoned => NoOffer::Abandoned,
            OpenEnd::Returned(_) => NoOffer::GoingAway,
        }));
    });
    session
        .open(&url, Priority::Auto, connection, refused)
        .map_err(|not_opened| NoOffer::NotOpened(not_opened.error))?;
    let offer = read(far).await?;
    match end.await {
        Ok(Reason::Completed) => Ok(offer),
        Ok(reason) => Err(NoOffer::Cut {
            bytes: offer.len(),
            reason: reason.label(),
        }),
        // The stream was never open.
        Err(_) => Err(refusal.take().unwrap_or(NoOffer::Abandoned)),
    }
}

/// Reads until the end of file, then closes the socket, which ends the stream. The end of file may
/// be a cut. Only the stream can report a cut.
async fn read(far: UnixStream) -> Result<Vec<u8>, NoOffer> {
    let mut bytes = Vec::new();
    // The bytes that were read before an error are kept.
    let _ = far
        .take(OFFER_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .await;
    match bytes.len() > OFFER_BYTES_MAX {
        true => Err(NoOffer::TooLong),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn no_more_is_read_than_an_offer_may_have() {
        for (bytes, fits) in [(OFFER_BYTES_MAX, true), (OFFER_BYTES_MAX + 1, false)] {
            let (mut near, far) = UnixStream::pair().unwrap();
            let write = async {
                near.write_all(&vec![b'x'; bytes]).await.unwrap();
                drop(near);
            };
            let (read, ()) = tokio::join!(read(far), write);
            match read {
                Ok(read) => assert!(fits && read.len() == bytes),
                Err(error) => assert!(!fits && matches!(error, NoOffer::TooLong), "{error}"),
            }
        }
    }

    #[tokio::test]
    async fn the_workers_are_asked_one_after_another_until_one_has_a_session() {
        let (offers, mut asked) = Offers::new(3);
        let mut last = asked.pop().unwrap();
        let mut second = asked.pop().unwrap();
        // The first worker has ended.
        drop(asked);
        let answer = async {
            let asker = second.recv().await.unwrap();
            asker.send(Err(NoOffer::GoingAway)).unwrap();
            let asker = last.recv().await.unwrap();
            assert!(matches!(offers.fetch().await, Err(NoOffer::Busy)));
            asker.send(Ok(b"text".to_vec())).unwrap();
        };
        let (fetched, ()) = tokio::join!(offers.fetch(), answer);
        assert_eq!(fetched.unwrap(), b"text");
        let answer = async { second.recv().await.unwrap().send(Err(NoOffer::Abandoned)) };
        let (fetched, _) = tokio::join!(offers.fetch(), answer);
        assert!(matches!(fetched, Err(NoOffer::Abandoned)));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let (offers, asked) = Offers::new(1);
        assert!(matches!(offers.fetch().await, Err(NoOffer::TimedOut)));
        // A request that timed out stays in the worker's queue. The next request fails until the
        // worker has received the first.
        assert!(matches!(offers.fetch().await, Err(NoOffer::TimedOut)));
        drop(asked);
        assert!(matches!(offers.fetch().await, Err(NoOffer::NoSession)));
    }
}

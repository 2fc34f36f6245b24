//! Room for streams of this side. The library reports whether the peer permits one more stream now,
//! but not how many streams the peer permits.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::Notify;

type Halves = (SendStream, RecvStream);

#[derive(Default)]
pub(super) struct Room {
    /// A stream that [`Self::wait`] opened and that is not used yet.
    spare: RefCell<Option<Halves>>,
    is_full: Cell<bool>,
    full_wake: Notify,
}

impl Room {
    /// Whether the peer permits no further streams for now.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// Opens a stream; `None`: the peer permits no stream now ([`Self::is_full`]).
    pub(super) fn take(&self, quic: &Connection) -> Option<Result<Halves, ConnectionError>> {
        if let Some(spare) = self.spare.take() {
            return Some(Ok(spare));
        }
        if self.is_full.get() {
            return None;
        }
        let mut context = Context::from_waker(Waker::noop());
        match pin!(quic.open_bi()).poll(&mut context) {
            Poll::Ready(stream) => Some(stream),
            Poll::Pending => {
                self.is_full.set(true);
                self.full_wake.notify_one();
                None
            }
        }
    }

    /// Waits for room after [`Self::is_full`] returned true. A caller may drop the future and call
    /// again.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn wait(&self, quic: &Connection) -> Result<(), ConnectionError> {
        while !self.is_full.get() {
            self.full_wake.notified().await;
        }
        let stream = quic.open_bi().await?;
        self.spare.replace(Some(stream));
        self.is_full.set(false);
        Ok(())
    }
}

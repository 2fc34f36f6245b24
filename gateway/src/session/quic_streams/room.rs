//! Room for streams of this side's: the library says whether the peer allows one more now, and not how many at once.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::Notify;

type Halves = (SendStream, RecvStream);

#[derive(Default)]
pub(super) struct Room {
    /// One that was waited for, and that nobody has taken.
    spare: RefCell<Option<Halves>>,
    is_full: Cell<bool>,
    full_wake: Notify,
}

impl Room {
    /// The peer allows no more for now.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// A new stream; `None`: [`Self::is_full`].
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

    /// Waits until there is room again behind [`Self::is_full`]. May be dropped and called again.
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

//! Buffers for payload: on its way from local sockets to the carrier, just read from the carrier, or
//! waiting for a local socket.
//!
//! A [`Pool`] keeps the idle ones of a worker, last used first, so that a few stay in the processor's
//! cache. A [`Share`] bounds what the sources of one carrier hold, so that a carrier that stalls takes
//! nothing from the others of its worker: streams with little to send have buffers of their own and
//! do not wait behind bulk. See docs/architecture.md, "Bounds of a gateway".

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a small buffer: four packets of JMUX's default size.
pub(crate) const SMALL_BYTES: usize = 16 << 10;
/// Bytes of a large buffer. Runs with 128 KiB took a tenth more CPU time; 512 KiB gained nothing more.
pub(crate) const LARGE_BYTES: usize = 256 << 10;
/// Small buffers that the sources of a carrier hold: 1 MiB.
pub(crate) const SMALL_MAX: usize = 64;
/// Large buffers that the sources of a carrier hold: 2 MiB.
pub(crate) const LARGE_MAX: usize = 8;
/// Idle buffers that a worker keeps: 1 MiB of small ones...
const SMALL_IDLE_MAX: usize = 64;
/// ...and 4 MiB of large ones.
const LARGE_IDLE_MAX: usize = 16;

/// The two kinds of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// [`SMALL_BYTES`].
    Small,
    /// [`LARGE_BYTES`].
    Large,
}

impl Size {
    const fn bytes(self) -> usize {
        match self {
            Self::Small => SMALL_BYTES,
            Self::Large => LARGE_BYTES,
        }
    }

    const fn idle_max(self) -> usize {
        match self {
            Self::Small => SMALL_IDLE_MAX,
            Self::Large => LARGE_IDLE_MAX,
        }
    }
}

/// The idle buffers of one worker.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
}

impl Pool {
    fn idle(&self, size: Size) -> &RefCell<Vec<Box<[u8]>>> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    /// A buffer that something else bounds: the one that a carrier is read into, or those of inboxes,
    /// which credit bounds.
    pub(crate) fn take(self: &Rc<Self>, size: Size) -> Buffer {
        self.hand_out(size, None)
    }

    fn hand_out(self: &Rc<Self>, size: Size, permit: Option<OwnedSemaphorePermit>) -> Buffer {
        let bytes = self.idle(size).borrow_mut().pop();
        Buffer {
            bytes: bytes.unwrap_or_else(|| vec![0; size.bytes()].into_boxed_slice()),
            size,
            pool: Rc::clone(self),
            _permit: permit,
        }
    }
}

/// What the sources of one carrier may hold of a worker's buffers.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Rc<Pool>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Share {
    pub(crate) fn new(pool: Rc<Pool>) -> Self {
        Self {
            pool,
            small: Arc::new(Semaphore::new(SMALL_MAX)),
            large: Arc::new(Semaphore::new(LARGE_MAX)),
        }
    }

    pub(crate) fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    fn permits(&self, size: Size) -> &Arc<Semaphore> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    /// Waits for a buffer, first come first served; `None` once the share is closed.
    pub(crate) async fn acquire(&self, size: Size) -> Option<Buffer> {
        let permits = Arc::clone(self.permits(size));
        let permit = permits.acquire_owned().await.ok()?;
        Some(self.pool.hand_out(size, Some(permit)))
    }

    /// No buffer is handed out any more.
    pub(crate) fn close(&self) {
        self.small.close();
        self.large.close();
    }
}

/// One buffer; goes back when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    size: Size,
    pool: Rc<Pool>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut idle = self.pool.idle(self.size).borrow_mut();
        if idle.len() < self.size.idle_max() {
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_share_hands_out_its_number_of_buffers_and_takes_them_back() {
        let share = Share::new(Rc::default());
        let mut held = Vec::new();
        for _ in 0..LARGE_MAX {
            held.push(share.acquire(Size::Large).await.unwrap());
        }
        assert_eq!(share.large.available_permits(), 0);
        assert!(share.acquire(Size::Small).await.is_some());
        held.pop();
        assert!(share.acquire(Size::Large).await.is_some());
        share.close();
        assert!(share.acquire(Size::Large).await.is_none());
    }

    #[test]
    fn a_pool_keeps_a_bounded_number_of_idle_buffers() {
        let pool = Rc::new(Pool::default());
        let held: Vec<_> = (0..2 * LARGE_IDLE_MAX)
            .map(|_| pool.take(Size::Large))
            .collect();
        drop(held);
        assert_eq!(pool.large.borrow().len(), LARGE_IDLE_MAX);
    }
}

//! Payload buffers. A buffer holds bytes on the way from a local socket to a carrier, bytes just
//! read from a carrier, or bytes that wait for a local socket.
//!
//! A [`Pool`] keeps a worker's idle buffers, the most recently used first, so that a few buffers
//! remain in the processor's cache. A [`Share`] bounds the buffers of one session's sources, so
//! that a stalled session takes nothing from other sessions of its worker. Streams with little to
//! send have separate buffers and do not wait for streams with bulk data. See docs/limits.md.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_proto::FIRST_READ_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pipe::{Held, Pipe, Pipes, Way};

/// Size of a small buffer in bytes, which a stream's first read uses: four packets of JMUX's
/// default size.
pub(crate) const SMALL_BYTES: usize = FIRST_READ_BYTES;
/// Size of a large buffer in bytes. Transfers with buffers of 128 KiB took a tenth more CPU time
/// than with 256 KiB. With 512 KiB, the CPU time did not fall further.
pub(crate) const LARGE_BYTES: usize = 256 << 10;
/// Number of small buffers for the sources of a session, per carrier. Together they have 1 MiB.
pub(crate) const SMALL_MAX: usize = 64;
/// Number of large buffers for the sources of a session, per carrier. Together they have 2 MiB.
pub(crate) const LARGE_MAX: usize = 8;
/// More carriers than this number share the buffers of this number.
const CARRIERS_MAX: usize = 4;
/// Numbers of further small and large buffers of a session, for streams with a rate limit. Together
/// they have 1.25 MiB. These buffers are separate, because a stream with a rate limit holds the
/// turn among all sessions while it takes a buffer. While it holds the turn, the stream must not
/// wait for the buffer of another stream.
const PACED_SMALL_MAX: usize = 16;
const PACED_LARGE_MAX: usize = 4;
/// If the used part of a kept buffer is smaller than the buffer's size divided by this number, the
/// part is copied to a buffer of its own size. For a larger part, copying costs more than it saves.
pub(crate) const FITTED_SHARE: usize = 4;
/// Maximum number of small idle buffers that a worker keeps. Together they have 1 MiB.
const SMALL_IDLE_MAX: usize = 64;
/// Maximum number of large idle buffers that a worker keeps. Together they have 8 MiB. As many
/// buffers are in use while batches in flight wait for the peer's acknowledgement.
const LARGE_IDLE_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// A buffer of [`SMALL_BYTES`].
    Small,
    /// A buffer of [`LARGE_BYTES`].
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

/// The idle buffers of one worker, and the pipes of its process. The default has pipes of its own.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: RefCell<Vec<Box<[u8]>>>,
    large: RefCell<Vec<Box<[u8]>>>,
    pub(crate) pipes: Arc<Pipes>,
}

impl Pool {
    /// The pool of a worker of this process.
    pub(crate) fn of_worker() -> Rc<Self> {
        Rc::new(Self {
            pipes: Pipes::of_process(),
            ..Self::default()
        })
    }

    fn idle(&self, size: Size) -> &RefCell<Vec<Box<[u8]>>> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    /// Takes a buffer that no share bounds. A reader of a carrier takes such a buffer. An inbox
    /// also does, because the stream's credit bounds an inbox.
    pub(crate) fn take(self: &Rc<Self>, size: Size) -> Buffer {
        self.hand_out(size, None)
    }

    fn hand_out(self: &Rc<Self>, size: Size, permit: Option<OwnedSemaphorePermit>) -> Buffer {
        let bytes = self.idle(size).borrow_mut().pop();
        Buffer {
            bytes: bytes.unwrap_or_else(|| vec![0; size.bytes()].into_boxed_slice()),
            home: Some((Rc::clone(self), size)),
            permit: permit.map(Permit),
        }
    }
}

/// The bound on a worker's buffers for the sources of one session: a fixed number of buffers, times
/// the highest number of carriers that the session has had, up to [`CARRIERS_MAX`]. For streams with a rate limit, the
/// session has further buffers, regardless of its carriers.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Rc<Pool>,
    carriers: Cell<usize>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    paced_small: Arc<Semaphore>,
    paced_large: Arc<Semaphore>,
    pipes: Held,
}

impl Share {
    pub(crate) fn new(pool: Rc<Pool>) -> Self {
        Self {
            pool,
            carriers: Cell::new(1),
            small: Arc::new(Semaphore::new(SMALL_MAX)),
            large: Arc::new(Semaphore::new(LARGE_MAX)),
            paced_small: Arc::new(Semaphore::new(PACED_SMALL_MAX)),
            paced_large: Arc::new(Semaphore::new(PACED_LARGE_MAX)),
            pipes: Held::default(),
        }
    }

    /// Takes a pipe, if the session may take `count` pipes now; `None`: the caller has to copy the
    /// payload.
    pub(crate) fn pipe(&self, way: Way, count: usize) -> Option<Pipe> {
        self.pool.pipes.take(way, &self.pipes, count)
    }

    /// Number of pipes that all sessions may still take.
    pub(crate) fn free_pipes(&self, way: Way) -> usize {
        self.pool.pipes.free(way)
    }

    /// Raises the bound for `carriers` carriers.
    pub(crate) fn suffice_for(&self, carriers: usize) {
        let more = (carriers.min(CARRIERS_MAX)).saturating_sub(self.carriers.get());
        self.carriers.set(self.carriers.get() + more);
        self.small.add_permits(more * SMALL_MAX);
        self.large.add_permits(more * LARGE_MAX);
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

    /// Waits for a buffer; `None`: the share is closed. The streams get buffers in the order of
    /// their calls.
    pub(crate) async fn acquire(&self, size: Size) -> Option<Buffer> {
        let permits = Arc::clone(self.permits(size));
        let permit = permits.acquire_owned().await.ok()?;
        Some(self.pool.hand_out(size, Some(permit)))
    }

    fn paced_permits(&self, size: Size) -> &Arc<Semaphore> {
        match size {
            Size::Small => &self.paced_small,
            Size::Large => &self.paced_large,
        }
    }

    /// Takes a buffer for a stream with a rate limit that has its turn; `None`: release the turn
    /// and call [`Self::wait_for_paced`].
    pub(crate) fn try_acquire_paced(&self, size: Size) -> Option<Buffer> {
        let permits = Arc::clone(self.paced_permits(size));
        let permit = permits.try_acquire_owned().ok()?;
        Some(self.pool.hand_out(size, Some(permit)))
    }

    /// Waits until [`Self::try_acquire_paced`] may return a buffer, or the share is closed.
    pub(crate) async fn wait_for_paced(&self, size: Size) {
        drop(self.paced_permits(size).acquire().await);
    }

    /// Number of buffers that hold a permit of the share.
    #[cfg(test)]
    pub(crate) fn lent(&self) -> usize {
        let carriers = self.carriers.get();
        let places = carriers * (SMALL_MAX + LARGE_MAX) + PACED_SMALL_MAX + PACED_LARGE_MAX;
        let all = [
            &self.small,
            &self.large,
            &self.paced_small,
            &self.paced_large,
        ];
        let free = all.iter().map(|permits| permits.available_permits());
        places - free.sum::<usize>()
    }

    /// Closes the share, which then provides no further buffers.
    pub(crate) fn close(&self) {
        self.small.close();
        self.large.close();
        self.paced_small.close();
        self.paced_large.close();
    }
}

/// The permit of one buffer in its share. Dropping the value releases the permit.
#[derive(Debug)]
pub(crate) struct Permit(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

/// A buffer. Dropping the value returns the buffer to its pool.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    /// The pool; `None`: the buffer belongs to no pool.
    home: Option<(Rc<Pool>, Size)>,
    permit: Option<Permit>,
}

impl Buffer {
    /// Takes the permit out, so that the caller can release the permit before the buffer. The
    /// caller then has to bound the buffer in another way.
    pub(crate) fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Prepares the buffer to be kept. If the first `used` bytes are less than one part in `share`
    /// of the buffer, the function copies these bytes to a buffer of their size. The buffer keeps
    /// its permit.
    pub(crate) fn fitted(mut self, used: usize, share: usize) -> Self {
        if used >= self.bytes.len() / share {
            return self;
        }
        Self {
            bytes: Box::from(&self.bytes[..used]),
            home: None,
            permit: self.permit.take(),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    /// Converts bytes to a buffer that belongs to no pool.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.into_boxed_slice(),
            home: None,
            permit: None,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some((pool, size)) = &self.home else {
            return;
        };
        let mut idle = pool.idle(*size).borrow_mut();
        if idle.len() < size.idle_max() {
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

    #[tokio::test]
    async fn another_carrier_brings_its_part_of_the_share_once() {
        let share = Share::new(Rc::default());
        for carriers in [1, 2, 1, 2] {
            share.suffice_for(carriers);
        }
        assert_eq!(share.large.available_permits(), 2 * LARGE_MAX);
        assert_eq!(share.small.available_permits(), 2 * SMALL_MAX);
    }

    #[tokio::test]
    async fn a_buffer_that_is_kept_takes_what_it_uses_and_no_place() {
        let share = Share::new(Rc::default());
        let mut little = share.acquire(Size::Large).await.unwrap();
        little[..3].copy_from_slice(b"abc");
        let permit = little.take_permit();
        let little = little.fitted(3, FITTED_SHARE);
        assert_eq!(&*little, b"abc");
        assert_eq!(share.pool.large.borrow().len(), 1);
        assert_eq!(share.large.available_permits(), LARGE_MAX - 1);
        drop(permit);
        assert_eq!(share.large.available_permits(), LARGE_MAX);
        let full = share.acquire(Size::Large).await.unwrap();
        let full = full.fitted(LARGE_BYTES / FITTED_SHARE, FITTED_SHARE);
        assert_eq!(full.len(), LARGE_BYTES);
        drop(full);
        assert_eq!(share.pool.large.borrow().len(), 1);
        drop(little);
        assert_eq!(share.pool.large.borrow().len(), 1);
    }

    #[tokio::test]
    async fn where_memory_is_scarce_a_buffer_takes_what_it_uses_and_keeps_its_place() {
        let share = Share::new(Rc::default());
        let half = share.acquire(Size::Large).await.unwrap();
        let half = half.fitted(LARGE_BYTES / 2, 1);
        assert_eq!(half.len(), LARGE_BYTES / 2);
        assert_eq!(share.pool.large.borrow().len(), 1);
        assert_eq!(share.large.available_permits(), LARGE_MAX - 1);
        drop(half);
        assert_eq!(share.large.available_permits(), LARGE_MAX);
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

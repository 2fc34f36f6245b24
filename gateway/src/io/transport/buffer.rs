//! Buffers for sealed bytes. A transport borrows a buffer while it holds sealed bytes. The
//! transports of a thread share the idle buffers.

use std::cell::RefCell;

/// Size of a buffer in bytes. A buffer holds all records that one write or read of a sealed
/// transport moves.
pub(super) const BUFFER_BYTES: usize = 272 << 10;
/// Maximum number of idle buffers that a thread keeps.
const IDLE_MAX: usize = 4;

thread_local! {
    static IDLE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Takes a buffer. Its contents are undefined.
pub(super) fn take() -> Box<[u8]> {
    let idle = IDLE.with_borrow_mut(Vec::pop);
    idle.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
}

/// Returns a buffer.
pub(super) fn put(buffer: Box<[u8]>) {
    IDLE.with_borrow_mut(|idle| {
        if idle.len() < IDLE_MAX {
            idle.push(buffer);
        }
    });
}

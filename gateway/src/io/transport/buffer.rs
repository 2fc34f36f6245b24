//! Memory for sealed bytes: lent to a transport while it has some, else shared by all of a thread.

use std::cell::RefCell;

/// Bytes of one: what one write or read of a sealed transport moves, in records.
pub(super) const BUFFER_BYTES: usize = 272 << 10;
/// Idle ones that a thread keeps.
const IDLE_MAX: usize = 4;

thread_local! {
    static IDLE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// One; what is in it is of no meaning.
pub(super) fn take() -> Box<[u8]> {
    let idle = IDLE.with_borrow_mut(Vec::pop);
    idle.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
}

/// Gives one back.
pub(super) fn put(buffer: Box<[u8]>) {
    IDLE.with_borrow_mut(|idle| {
        if idle.len() < IDLE_MAX {
            idle.push(buffer);
        }
    });
}

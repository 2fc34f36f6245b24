//! The room for streams on one link.
//!
//! Some libraries do not report how many streams the peer takes. QUIC's library reports only that
//! the peer takes no more streams for now. A link therefore records how many streams it had at the
//! time of that report. This number serves as the link's limit when the bridge computes the
//! required number of links.

use std::cell::Cell;
use std::rc::Rc;

/// The streams on one link, open or being opened.
#[derive(Default)]
pub(super) struct Room {
    taken: Cell<usize>,
    /// See [`Self::met`].
    met: Cell<Option<usize>>,
    /// Whether a stream has ended since the link was last full.
    one_ended: Cell<bool>,
}

/// The place of one stream on its link.
pub(super) struct Taken(Rc<Room>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        self.0.one_ended.set(true);
    }
}

impl Room {
    pub(super) fn take(self: &Rc<Self>) -> Taken {
        let taken = self.taken.get() + 1;
        self.taken.set(taken);
        self.met.set(self.met.get().map(|met| met.max(taken)));
        Taken(Rc::clone(self))
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.get()
    }

    /// Number of streams when the link was last full; `None`: the link was never full.
    pub(super) fn met(&self) -> Option<usize> {
        self.met.get()
    }

    /// Records that the peer takes no more streams for now. A link that has no streams ignores the
    /// event, since such a link has reached no limit.
    pub(super) fn note_full(&self) {
        self.met.set(Some(self.taken.get()).filter(|met| *met > 0));
        self.one_ended.set(false);
    }

    /// Records that the peer takes one more stream. If no stream has ended, the peer has raised its
    /// limit.
    pub(super) fn note_free(&self) {
        if !self.one_ended.get() {
            self.met.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_was_met_stays_until_the_peer_takes_more() {
        let room = Rc::new(Room::default());
        room.note_full();
        assert_eq!(room.met(), None);
        let mut streams = vec![room.take(), room.take()];
        room.note_full();
        assert_eq!(room.met(), Some(2));
        streams.pop();
        room.note_free();
        assert_eq!((room.met(), room.taken()), (Some(2), 1));
        streams.extend([room.take(), room.take()]);
        assert_eq!(room.met(), Some(3));
        room.note_full();
        room.note_free();
        assert_eq!(room.met(), None);
    }
}

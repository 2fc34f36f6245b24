//! Orders the payload of one stream that arrived over several carriers.
//!
//! The local socket or the inbox has taken all bytes before [`Reassembly::next`]. Bytes beyond a
//! gap are kept here, and move to the inbox once the gap is closed. The stream's credit bounds
//! these bytes. If a peer sends tiny pieces, the bound is twice the credit, since adjacent pieces
//! are merged. A stream over one carrier has no gaps and keeps no bytes here.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::rc::Rc;

use super::buffers::Pool;
use super::inbox::Inbox;

/// A piece of this size is not extended, since an extension would move the piece in memory.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A stream's position, and the pieces beyond its gaps.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// Offset of the next byte in order.
    next: u64,
    /// Pieces by the offset of their first byte; they do not overlap.
    early: BTreeMap<u64, Vec<u8>>,
}

impl Reassembly {
    /// Whether no piece beyond a gap is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// Whether payload at `offset` comes next.
    pub(crate) fn is_next(&self, offset: u64) -> bool {
        self.next == offset
    }

    /// Records that the local socket or `inbox` has taken the next `length` bytes. Moves the pieces
    /// that follow these bytes into `inbox`.
    pub(crate) fn pass(&mut self, length: usize, inbox: &mut Inbox, pool: &Rc<Pool>) {
        self.next += length as u64;
        while let Some(piece) = self.early.first_entry()
            && *piece.key() == self.next
        {
            let piece = piece.remove();
            self.next += piece.len() as u64;
            inbox.push(pool, &piece);
        }
    }

    /// Keeps payload at `offset`, beyond a gap.
    pub(crate) fn keep(&mut self, offset: u64, slices: &[IoSlice<'_>]) {
        debug_assert!(
            offset > self.next,
            "payload at {offset}, behind {}",
            self.next
        );
        let length = slices.iter().map(|slice| slice.len()).sum();
        let before = self.early.range_mut(..offset).next_back();
        let piece = match before {
            Some((start, piece))
                if start + piece.len() as u64 == offset && piece.len() < PIECE_BYTES_MAX =>
            {
                piece
            }
            _ => self.early.entry(offset).or_insert_with(|| {
                // Exactly `length`, because `Vec` would round up.
                Vec::with_capacity(length)
            }),
        };
        slices
            .iter()
            .for_each(|slice| piece.extend_from_slice(slice));
    }

    /// Takes payload at `offset`, for a stream without a socket to write to.
    pub(crate) fn receive(
        &mut self,
        offset: u64,
        slices: &[IoSlice<'_>],
        inbox: &mut Inbox,
        pool: &Rc<Pool>,
    ) {
        if !self.is_next(offset) {
            return self.keep(offset, slices);
        }
        let mut length = 0;
        for slice in slices {
            inbox.push(pool, slice);
            length += slice.len();
        }
        self.pass(length, inbox, pool);
    }

    /// Drops the pieces, since their gaps will never be closed.
    pub(crate) fn clear(&mut self) {
        self.early.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::inbox::SLICES_MAX;
    use super::*;

    fn drain(inbox: &mut Inbox) -> Vec<u8> {
        let mut all = Vec::new();
        while !inbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = inbox.slices(usize::MAX, &mut slices);
            let before = all.len();
            slices[..count]
                .iter()
                .for_each(|slice| all.extend_from_slice(slice));
            inbox.consume(all.len() - before);
        }
        all
    }

    /// Disjoint ranges that fill a stream, in any order.
    fn shuffled() -> impl Strategy<Value = Vec<(usize, usize)>> {
        proptest::collection::vec(prop_oneof![1usize..20, 1usize..100_000], 1..40)
            .prop_map(|lengths| {
                let mut start = 0;
                let range = |length| {
                    start += length;
                    (start - length, start)
                };
                lengths.into_iter().map(range).collect::<Vec<_>>()
            })
            .prop_shuffle()
    }

    proptest! {
        #[test]
        fn shuffled_ranges_come_out_in_order(ranges in shuffled()) {
            let length = ranges.iter().map(|(_, end)| *end).max().unwrap();
            let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let pool = Rc::new(Pool::default());
            let (mut reassembly, mut inbox) = (Reassembly::default(), Inbox::default());
            let mut out = Vec::new();
            let mut come = Vec::new();
            for (start, end) in ranges {
                let (one, two) = bytes[start..end].split_at((end - start) / 2);
                let slices = [IoSlice::new(one), IoSlice::new(two)];
                reassembly.receive(start as u64, &slices, &mut inbox, &pool);
                out.extend(drain(&mut inbox));
                come.push((start, end));
                come.sort_unstable();
                let in_order = come.iter().fold(0, |next, (start, end)| {
                    if *start == next { *end } else { next }
                });
                prop_assert_eq!(out.len(), in_order);
                let last = come.last().is_some_and(|(_, end)| *end == in_order);
                prop_assert_eq!(reassembly.is_empty(), last);
            }
            prop_assert!(out == bytes);
        }
    }

    #[test]
    fn crumbs_beyond_a_gap_are_kept_in_few_pieces() {
        let mut reassembly = Reassembly::default();
        for offset in 1..=1000 {
            reassembly.keep(offset, &[IoSlice::new(b"x")]);
        }
        assert_eq!(reassembly.early.len(), 1);
        assert!(reassembly.early[&1].capacity() <= 2048);
    }

    #[test]
    fn what_a_socket_took_at_once_counts_too() {
        let pool = Rc::new(Pool::default());
        let (mut reassembly, mut inbox) = (Reassembly::default(), Inbox::default());
        reassembly.keep(5, &[IoSlice::new(b"world")]);
        assert!(reassembly.is_next(0) && !reassembly.is_next(5));
        reassembly.pass(5, &mut inbox, &pool);
        assert_eq!(drain(&mut inbox), b"world");
        assert!(reassembly.is_next(10) && reassembly.is_empty());
    }
}

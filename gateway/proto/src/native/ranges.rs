//! The bytes of a stream that have arrived, when the frames of several carriers arrive out of
//! order.
//!
//! Bound: [`GAPS_MAX`] ranges after the first gap.

use std::collections::BTreeMap;

/// Maximum number of ranges after the first gap of a stream.
pub(super) const GAPS_MAX: usize = 1024;

/// Why a range is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// A part of the range has arrived before.
    Overlap,
    /// The number of ranges would exceed [`GAPS_MAX`].
    TooManyGaps,
}

#[derive(Debug)]
pub(super) struct Ranges {
    /// Every byte before this offset has arrived.
    prefix: u64,
    /// Ranges after the prefix, from start to end. The ranges are not adjacent to one another.
    behind: BTreeMap<u64, u64>,
}

impl Ranges {
    /// The first byte has the offset `first`.
    pub(super) fn new(first: u64) -> Self {
        Self {
            prefix: first,
            behind: BTreeMap::new(),
        }
    }

    pub(super) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Whether `start..end` may arrive. `start` must be less than `end`.
    pub(super) fn check(&self, start: u64, end: u64) -> Result<(), Unusable> {
        if start == self.prefix && self.behind.is_empty() {
            return Ok(());
        }
        let before = self.behind.range(..end).next_back();
        if start < self.prefix || before.is_some_and(|(_, before)| *before > start) {
            return Err(Unusable::Overlap);
        }
        if start > self.prefix && self.behind.len() >= GAPS_MAX {
            return Err(Unusable::TooManyGaps);
        }
        Ok(())
    }

    /// Records that `start..end` has arrived. The caller has checked the range.
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        debug_assert!(self.check(start, end) != Err(Unusable::Overlap) && start < end);
        if start > self.prefix {
            let joined = match self.behind.range(..=start).next_back() {
                Some((&first, &last)) if last == start => first,
                _ => start,
            };
            let end = self.behind.remove(&end).unwrap_or(end);
            self.behind.insert(joined, end);
            return;
        }
        self.prefix = self.prefix.max(end);
        while let Some((&next, &last)) = self.behind.first_key_value() {
            if next > self.prefix {
                break;
            }
            self.behind.pop_first();
            self.prefix = self.prefix.max(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_in_any_order_are_a_whole(
            lengths in proptest::collection::vec(1u64..50, 1..40),
            order in proptest::collection::vec(any::<u32>(), 40),
        ) {
            let mut pieces = Vec::new();
            let mut end = 0;
            for (length, key) in lengths.iter().zip(order) {
                pieces.push((key, end, end + length));
                end += length;
            }
            pieces.sort_unstable();
            let mut ranges = Ranges::new(0);
            for (index, (_, from, to)) in pieces.iter().enumerate() {
                prop_assert_eq!(ranges.check(*from, *to), Ok(()));
                ranges.insert(*from, *to);
                prop_assert_eq!(ranges.check(*from, *to), Err(Unusable::Overlap));
                prop_assert_eq!(ranges.check(*to - 1, *to + 1), Err(Unusable::Overlap));
                let whole = pieces[..=index].iter().map(|(_, from, to)| to - from).sum::<u64>();
                let behind = ranges.behind.iter().map(|(from, to)| to - from).sum::<u64>();
                prop_assert_eq!(ranges.prefix() + behind, whole);
            }
            prop_assert_eq!(ranges.prefix(), end);
            prop_assert!(ranges.behind.is_empty());
        }
    }

    #[test]
    fn gaps_have_a_bound_and_can_still_be_filled() {
        let mut ranges = Ranges::new(0);
        for gap in 0..GAPS_MAX as u64 {
            let start = 2 * gap + 1;
            assert_eq!(ranges.check(start, start + 1), Ok(()));
            ranges.insert(start, start + 1);
        }
        assert_eq!(ranges.check(10_000, 10_001), Err(Unusable::TooManyGaps));
        assert_eq!(ranges.check(0, 1), Ok(()));
        ranges.insert(0, 1);
        assert_eq!(ranges.prefix(), 2);
    }
}

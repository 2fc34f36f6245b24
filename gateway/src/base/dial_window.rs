//! The results of a forward's recent dials.
//!
//! The window moves in steps of a tenth of [`DIALS_SECONDS`], so its memory is constant.

use std::time::{Duration, Instant};

use muxtunnel_gateway_config::status::{DIALS_SECONDS, Dials};
use parking_lot::{Mutex, MutexGuard};

const SLOTS: usize = 10;
const SLOT: Duration = Duration::from_secs(DIALS_SECONDS / SLOTS as u64);

#[derive(Debug)]
pub(crate) struct DialWindow {
    since: Instant,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Number of the newest slot, counted from `since`.
    newest: u64,
    dials: [Dials; SLOTS],
}

impl DialWindow {
    pub(crate) fn new(since: Instant) -> Self {
        Self {
            since,
            slots: Mutex::default(),
        }
    }

    /// Counts a dial that connected to the target.
    pub(crate) fn connected(&self, now: Instant) {
        self.at(now).newest().connected += 1;
    }

    /// Counts a dial that did not reach the target.
    pub(crate) fn failed(&self, now: Instant) {
        self.at(now).newest().failed += 1;
    }

    /// The dials of the last [`DIALS_SECONDS`].
    pub(crate) fn dials(&self, now: Instant) -> Dials {
        let slots = self.at(now);
        slots
            .dials
            .iter()
            .fold(Dials::default(), |sum, dials| Dials {
                connected: sum.connected + dials.connected,
                failed: sum.failed + dials.failed,
            })
    }

    /// The slots, after slots that have expired at `now` are emptied.
    fn at(&self, now: Instant) -> MutexGuard<'_, Slots> {
        let elapsed = now.saturating_duration_since(self.since);
        let number = elapsed.as_secs() / SLOT.as_secs();
        let mut slots = self.slots.lock();
        let passed = number.saturating_sub(slots.newest).min(SLOTS as u64);
        for step in 0..passed {
            let expired = (number - step) as usize % SLOTS;
            slots.dials[expired] = Dials::default();
        }
        slots.newest = slots.newest.max(number);
        slots
    }
}

impl Slots {
    fn newest(&mut self) -> &mut Dials {
        &mut self.dials[self.newest as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dial_counts_for_the_window_and_no_longer() {
        let since = Instant::now();
        let window = DialWindow::new(since);
        let at = |seconds| since + Duration::from_secs(seconds);
        let both = |connected, failed| Dials { connected, failed };
        window.failed(at(0));
        window.failed(at(1));
        window.connected(at(DIALS_SECONDS / 2));
        assert_eq!(window.dials(at(DIALS_SECONDS / 2)), both(1, 2));
        assert_eq!(window.dials(at(DIALS_SECONDS - 1)), both(1, 2));
        assert_eq!(window.dials(at(DIALS_SECONDS)), both(1, 0));
        assert_eq!(window.dials(at(2 * DIALS_SECONDS)), both(0, 0));
        // A long pause empties every slot.
        window.failed(at(100 * DIALS_SECONDS + 7));
        assert_eq!(window.dials(at(100 * DIALS_SECONDS + 8)), both(0, 1));
        assert_eq!(window.dials(at(200 * DIALS_SECONDS)), both(0, 0));
        // Workers read their clocks before they take the lock.
        window.failed(at(100 * DIALS_SECONDS));
        assert_eq!(window.dials(at(200 * DIALS_SECONDS)), both(0, 1));
    }
}

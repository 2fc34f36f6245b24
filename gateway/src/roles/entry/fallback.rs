//! Returns from the fallback to an exit of `connect`.

use std::rc::Rc;

use muxtunnel_gateway_config as config;

use super::exits::{By, Connected, Taken, discovery_pause};
use super::{Entry, Running, begin_with};
use crate::session::mux::Mux;

/// A session that is not in use yet. Dropping this value ends the session.
struct Unused(Option<Rc<dyn Mux>>);

impl Unused {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(mux) = &self.0 {
            mux.shut_down();
        }
    }
}

impl Entry {
    /// Waits for a ready session with an exit of `connect`, if `place` uses the fallback.
    pub(super) async fn instead_of_fallback(
        self: &Rc<Self>,
        place: usize,
        pool: config::Pool,
    ) -> Running {
        let mut discoveries = 0;
        loop {
            let found = self.found_instead_of_fallback(place, &mut discoveries);
            let connected = found.await;
            let at = connected.at.clone();
            let Ok(session) = begin_with(self, connected) else {
                continue;
            };
            let unused = Unused(Some(Rc::clone(&session.mux)));
            if let Some(running) = self.bring_up(session, pool).await {
                self.occupy(place, at, By::Names);
                unused.keep();
                return running;
            }
        }
    }

    /// Connects to an exit of `connect` as soon as an exit answers. `discoveries` counts the
    /// look-ups. Never returns if `place` does not use the fallback, or if the entry always has a
    /// single exit.
    async fn found_instead_of_fallback(&self, place: usize, discoveries: &mut u32) -> Connected {
        let is_fallback = |taken: &Taken| taken.by == By::Fallback;
        if !self.exits.borrow().get(&place).is_some_and(is_fallback) || self.has_one_exit() {
            return std::future::pending().await;
        }
        let (names, _) = self.dial_context.names();
        loop {
            tokio::time::sleep(discovery_pause(*discoveries)).await;
            *discoveries += 1;
            let Ok(addresses) = self.dial_context.addresses(names).await else {
                continue;
            };
            let chosen = self.choose(place, &addresses);
            if let Ok(connected) = self.race(chosen, |_| ()).await {
                return connected;
            }
        }
    }
}

//! Ends streams that were quiet for too long ([`timeouts`]).

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Instant;

use muxtunnel_gateway_config::Timeouts;

use super::Driver;
use crate::stream::timeouts;

/// Checks all streams periodically; never returns.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    let reloadable = driver.reloadable.clone();
    timeouts::follow(reloadable, |timeouts| {
        driver.cut_idle(timeouts, super::now());
    })
    .await
}

impl Driver {
    fn cut_idle(self: &Rc<Self>, timeouts: Timeouts, now: Instant) {
        for io in self.streams.all().iter().filter(|io| io.is_open()) {
            if let Some((reason, error)) = io.check(timeouts, now) {
                io.abandon(self, reason, error);
            }
        }
    }
}

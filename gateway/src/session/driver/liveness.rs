//! Notices that the other end of a carrier has vanished where nothing below the carrier does.
//!
//! The kernel probes a TCP connection by itself ([`Path::prepare`](crate::io::transport::Path::prepare)). It knows nothing of
//! what is behind a pipe or a Unix socket, such as ssh over a path that has gone. The driver probes such a carrier, and
//! gives it up when nothing comes on it any more. Not on the data path: counters are compared every [`INTERVAL`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::CarrierId;

use super::{Driver, SessionEnd};
use crate::session::mux::Progress;

/// Between two probes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Probes after which a carrier on which nothing has come is lost.
const PROBES: u32 = 3;

/// What was known of a carrier before.
#[derive(Debug, Clone, Copy)]
struct Heard {
    received: u64,
    /// Probes since then.
    probes: u32,
}

/// Probes for as long as the session lives.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    driver.reached(Progress::Ready).await;
    let mut heard = BTreeMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        driver.check_liveness(&mut heard);
    }
}

impl Driver {
    fn check_liveness(self: &Rc<Self>, before: &mut BTreeMap<CarrierId, Heard>) {
        let mut now = BTreeMap::new();
        for carrier in self.carriers.all() {
            if !carrier.is_up() || carrier.transport.path().is_some() {
                continue;
            }
            let received = carrier.stats.received();
            let unheard = before
                .get(&carrier.id)
                .filter(|heard| heard.received == received);
            let probes = unheard.map_or(0, |heard| heard.probes);
            if probes == PROBES {
                let reason = format!(
                    "nothing has come for {} s",
                    INTERVAL.as_secs() * u64::from(PROBES)
                );
                carrier.distrust(SessionEnd::GivenUp(reason));
                continue;
            }
            // A busy carrier is probed as well: a frame every 5 s costs less than a case of its own.
            let asked = self.update(|session| session.probe(carrier.id));
            let probes = probes + u32::from(asked);
            now.insert(carrier.id, Heard { received, probes });
        }
        *before = now;
    }
}

//! Detects a dead peer on carriers whose lower layers cannot.
//!
//! The kernel probes a TCP connection ([`Path::prepare`](crate::io::transport::Path::prepare)). The
//! kernel cannot detect a dead peer behind a pipe or a Unix socket, for example at the end of a
//! broken ssh connection. The driver probes such a carrier, and gives the carrier up if no more
//! bytes arrive. The probes are not on the data path: the driver compares counters every
//! [`INTERVAL`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::CarrierId;

use super::{Driver, SessionEnd};
use crate::session::mux::Progress;

const INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered probes after which a carrier is lost.
const PROBES: u32 = 3;

/// State of a carrier at the previous check.
#[derive(Debug, Clone, Copy)]
struct Heard {
    received: u64,
    /// Probes since the last received byte.
    probes: u32,
}

/// Sends probes as long as the session runs.
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
                    "the peer sent no bytes for {} s",
                    INTERVAL.as_secs() * u64::from(PROBES)
                );
                carrier.distrust(SessionEnd::GivenUp(reason));
                continue;
            }
            // The driver also probes busy carriers: a frame every 5 s costs less than a special
            // case.
            let asked = self.update(|session| session.probe(carrier.id));
            let probes = probes + u32::from(asked);
            now.insert(carrier.id, Heard { received, probes });
        }
        *before = now;
    }
}

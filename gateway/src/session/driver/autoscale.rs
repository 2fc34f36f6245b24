//! Samples a session's carriers, and sets the requested number of carriers.
//!
//! The sampler is not on the data path. The sampler reads each carrier's path once per
//! [`SAMPLE_EVERY`], and only if the number of carriers can change. [`crate::base::bottleneck`]
//! determines what holds up a carrier. [`crate::session::carrier_autoscaler`] computes the
//! requested number. If the peer dials the carriers, the session sends this number to the peer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::status::Limit;

use super::Driver;
use crate::base::carrier_history::{self, CarrierHistory, Gateway};
use crate::base::cpu::ThreadCpu;
use crate::io::transport::Path;
use crate::session::carrier_autoscaler::{self, CarrierAutoscaler};
use crate::session::mux::Progress;

const SAMPLE_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Seen {
    /// By number.
    carriers: BTreeMap<u64, CarrierHistory>,
    cpu: ThreadCpu,
}

/// Takes samples as long as the session runs.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    if !driver.config.carriers_vary {
        return std::future::pending().await;
    }
    driver.reached(Progress::Ready).await;
    let (mut seen, mut autoscaler) = (Seen::default(), CarrierAutoscaler::default());
    loop {
        let sample = driver.sample_carriers(super::now(), &mut seen);
        driver.want_carriers(autoscaler.sample(&sample));
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

impl Driver {
    fn sample_carriers(&self, now: Instant, seen: &mut Seen) -> carrier_autoscaler::Sample {
        let session = self.engine.session.view();
        let gateway = Gateway {
            protocol: self.config.protocol,
            budget: self.config.memory.receive.0,
            cpu: seen.cpu.part(now),
        };
        let carriers = self.carriers.view();
        seen.carriers
            .retain(|number, _| carriers.contains_key(number));
        let mut sample = carrier_autoscaler::Sample {
            at: now,
            up: 0,
            bulk: 0,
            held: 0,
            rate: 0.0,
            rtt: Duration::MAX,
        };
        for (number, carrier) in carriers.iter().filter(|(_, carrier)| carrier.is_up()) {
            sample.up += 1;
            let path = carrier.transport.path();
            let Some(Ok(path)) = path.map(Path::info) else {
                continue;
            };
            let history = seen.carriers.entry(*number).or_default();
            let received = carrier.stats.received();
            let budget_used = session.receive_budget_used();
            history.add(
                &gateway,
                carrier_history::Sample {
                    at: now,
                    path,
                    received,
                    budget_used,
                },
            );
            let verdict = history.verdict;
            sample.rate += verdict.map_or(0.0, |verdict| verdict.sent as f64);
            sample.rtt = sample.rtt.min(path.rtt_min);
            if session.takes_bulk(carrier.id) {
                sample.bulk += 1;
                let held = verdict.is_some_and(|verdict| is_held(verdict.limit));
                sample.held += usize::from(held);
            }
        }
        sample
    }
}

/// Whether an additional carrier could raise the rate, given this carrier's limit.
fn is_held(limit: Limit) -> bool {
    match limit {
        Limit::ReceiveWindow | Limit::SendBuffer | Limit::CongestionWindow => true,
        Limit::Idle | Limit::Cpu | Limit::Memory | Limit::Application | Limit::Other => false,
    }
}

//! Looks at the carriers of a session: how many of them could be used for what is sent.
//!
//! Not on the data path: once in [`LOOK_EVERY`] each carrier's TCP_INFO is read, where the number of
//! carriers can change at all. [`crate::limit`] says what holds a carrier up, [`crate::demand`] what follows;
//! the session tells the peer, where that one dials.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::status::Limit;
use muxtunnel_gateway_config::{Config, Protocol, Role};
use muxtunnel_proto::CarrierId;

use super::{Driver, Progress};
use crate::cpu::ThreadCpu;
use crate::demand::{self, Demand};
use crate::measure::{self, Gateway, Measured};
use crate::sys;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What was seen of a session.
#[derive(Debug, Default)]
struct Seen {
    carriers: BTreeMap<CarrierId, Measured>,
    cpu: ThreadCpu,
}

/// Looks for as long as the session lives.
pub(super) async fn run(driver: &Rc<Driver>) -> Infallible {
    if !may_change(&driver.config.borrow()) {
        return std::future::pending().await;
    }
    driver.reached(Progress::Ready).await;
    let (mut seen, mut demand) = (Seen::default(), Demand::default());
    loop {
        let look = driver.look_at_carriers(super::now(), &mut seen);
        driver.want_carriers(demand.look(&look));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether this side has a say in how many carriers there are. An exit does not know what its entries are
/// configured to.
fn may_change(config: &Config) -> bool {
    let several = config.protocol == Protocol::Native && config.resumes();
    let pool = config.pool();
    several && (config.role == Role::Exit || pool.min < pool.max)
}

impl Driver {
    fn look_at_carriers(&self, now: Instant, seen: &mut Seen) -> demand::Look {
        let session = self.session.borrow();
        let config = self.config.borrow();
        let gateway = Gateway {
            protocol: config.protocol,
            budget: config.memory.receive.0,
            cpu: seen.cpu.part(now),
        };
        let carriers = self.carriers.borrow();
        seen.carriers.retain(|id, _| carriers.contains_key(id));
        let mut look = demand::Look {
            at: now,
            up: 0,
            bulk: 0,
            held: 0,
            rate: 0.0,
            rtt: Duration::MAX,
        };
        for (id, carrier) in carriers.iter().filter(|(_, carrier)| carrier.is_up()) {
            look.up += 1;
            let tcp = carrier.transport.tcp();
            let Some(Ok(tcp)) = tcp.map(|tcp| sys::tcp_info(tcp.as_fd())) else {
                continue;
            };
            let measured = seen.carriers.entry(*id).or_default();
            let received = carrier.stats.received();
            let budget_used = session.receive_budget_used();
            measured.add(
                &gateway,
                measure::Look {
                    at: now,
                    tcp,
                    received,
                    budget_used,
                },
            );
            let verdict = measured.verdict;
            look.rate += verdict.map_or(0.0, |verdict| verdict.sent as f64);
            look.rtt = look.rtt.min(tcp.rtt_min);
            if session.takes_bulk(*id) {
                look.bulk += 1;
                let held = verdict.is_some_and(|verdict| is_held(verdict.limit));
                look.held += usize::from(held);
            }
        }
        look
    }
}

/// Whether another carrier may carry what this one does not.
fn is_held(limit: Limit) -> bool {
    match limit {
        Limit::ReceiveWindow | Limit::SendBuffer | Limit::CongestionWindow => true,
        Limit::Idle | Limit::Cpu | Limit::Memory | Limit::Application | Limit::Other => false,
    }
}

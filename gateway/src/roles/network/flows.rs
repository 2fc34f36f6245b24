//! Remembers flows whose replies no rule permits, so that their replies pass.
//!
//! Rules name destinations, and a packet does not show which side began its flow. A packet of a
//! peer that no rule permits therefore passes if it replies to a flow that this table has. The
//! table gets only flows whose replies need it.
//!
//! Bounds: [`HOST_FLOWS_MAX`] flows that this side began, and [`PEER_FLOWS_MAX`] flows that each
//! entry began towards other entries. Beyond a bound, the flow without a packet for the longest
//! time is forgotten. An entry cannot make an exit forget flows that others began.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_packet::{Fragment, Packet};
use parking_lot::Mutex;

use super::owner::Owner;

/// Maximum number of flows that this side began.
const HOST_FLOWS_MAX: usize = 16_384;
/// Maximum number of flows that one entry began.
const PEER_FLOWS_MAX: usize = 1_024;
/// Time without a packet after which a flow of TCP is forgotten: the minimum of RFC 5382, section
/// 5.
const TCP_IDLE_MAX: Duration = Duration::from_secs(7_440);
/// Time without a packet after which any other flow is forgotten: the default of RFC 4787, section
/// 4.3.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Interval at which the last packet of a flow is recorded.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Protocol number of TCP (IANA).
const TCP: u8 = 6;

/// Addresses and ports of a flow. Packets without ports form one flow for each protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    /// Owner of `replier`.
    owner: Owner,
    protocol: u8,
    beginner: IpAddr,
    replier: IpAddr,
    /// Port of `beginner`, and of `replier`.
    ports: Option<(u16, u16)>,
}

impl Flow {
    /// The flow of a packet to an address of `owner`.
    pub(super) fn begun_by(packet: &Packet, owner: &Owner) -> Self {
        Self {
            owner: owner.clone(),
            protocol: packet.protocol,
            beginner: packet.source,
            replier: packet.destination,
            ports: packet.ports.or(packet.fragment_ports),
        }
    }

    /// The flow to which a packet of `owner` would reply.
    pub(super) fn replied_to_by(packet: &Packet, owner: &Owner) -> Self {
        let ports = packet.ports.or(packet.fragment_ports);
        Self {
            owner: owner.clone(),
            protocol: packet.protocol,
            beginner: packet.destination,
            replier: packet.source,
            ports: ports.map(|(replier, beginner)| (beginner, replier)),
        }
    }

    fn idle_max(&self) -> Duration {
        match self.protocol {
            TCP => TCP_IDLE_MAX,
            _ => IDLE_MAX,
        }
    }
}

/// The remembered flows of all workers.
#[derive(Debug, Default)]
pub(super) struct Flows(Mutex<BTreeMap<Option<Owner>, Share>>);

impl Flows {
    /// Remembers a flow. `beginner`: the entry that began the flow, or `None` for this side.
    pub(super) fn begin(&self, beginner: Option<&Owner>, flow: Flow, now: Instant) {
        let mut shares = self.0.lock();
        let share = shares.entry(beginner.cloned()).or_default();
        share.record(flow, now, most_of(beginner));
    }

    /// Whether a packet of `owner` replies to a flow that `beginner` began.
    pub(super) fn has_reply(
        &self,
        beginner: Option<&Owner>,
        packet: &Packet,
        owner: &Owner,
        now: Instant,
    ) -> bool {
        let mut shares = self.0.lock();
        let Some(share) = shares.get_mut(&beginner.cloned()) else {
            return false;
        };
        let flow = Flow::replied_to_by(packet, owner);
        if !share.is_alive(&flow, now) {
            return false;
        }
        if packet.fragment == Fragment::First {
            // The later fragments have no ports.
            let ports = None;
            let later = Flow {
                ports,
                ..flow.clone()
            };
            share.record(later, now, most_of(beginner));
        }
        share.record(flow, now, most_of(beginner));
        true
    }

    /// Adds a session of an entry.
    fn add_session(&self, beginner: &Owner) {
        let mut shares = self.0.lock();
        shares.entry(Some(beginner.clone())).or_default().sessions += 1;
    }

    /// Removes a session of an entry. Forgets the entry's flows if it was the last one.
    fn remove_session(&self, beginner: &Owner) {
        let (mut shares, key) = (self.0.lock(), Some(beginner.clone()));
        if let Some(share) = shares.get_mut(&key) {
            share.sessions = share.sessions.saturating_sub(1);
            if share.sessions == 0 {
                shares.remove(&key);
            }
        }
    }
}

fn most_of(beginner: Option<&Owner>) -> usize {
    match beginner {
        None => HOST_FLOWS_MAX,
        Some(_) => PEER_FLOWS_MAX,
    }
}

/// Belongs to a session of an entry. Dropping the last value of an entry forgets the flows that the
/// entry began.
pub(super) struct Begins {
    flows: Arc<Flows>,
    owner: Owner,
}

impl Begins {
    pub(super) fn of(flows: &Arc<Flows>, owner: &Owner) -> Self {
        flows.add_session(owner);
        Self {
            flows: Arc::clone(flows),
            owner: owner.clone(),
        }
    }
}

impl Drop for Begins {
    fn drop(&mut self) {
        self.flows.remove_session(&self.owner);
    }
}

/// The flows of one beginner.
#[derive(Debug, Default)]
struct Share {
    flows: BTreeMap<Flow, Seen>,
    /// The flows in the order of their last recorded packets.
    order: BTreeMap<u64, Flow>,
    records: u64,
    /// Number of sessions of the beginner; 0: the beginner is this side.
    sessions: usize,
}

/// The last recorded packet of a flow.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    /// Key in [`Share::order`].
    place: u64,
}

impl Share {
    /// Whether the flow is remembered and has had a packet recently.
    fn is_alive(&self, flow: &Flow, now: Instant) -> bool {
        let seen = self.flows.get(flow);
        seen.is_some_and(|seen| now.saturating_duration_since(seen.at) <= flow.idle_max())
    }

    /// Records a packet of `flow`. Holds at most `most` flows.
    fn record(&mut self, flow: Flow, now: Instant, most: usize) {
        match self.flows.get(&flow) {
            Some(seen) if now.saturating_duration_since(seen.at) < RECORD_INTERVAL => return,
            Some(seen) => drop(self.order.remove(&seen.place)),
            None if self.flows.len() >= most => {
                if let Some((_, oldest)) = self.order.pop_first() {
                    self.flows.remove(&oldest);
                }
            }
            None => {}
        }
        self.records += 1;
        let place = self.records;
        self.order.insert(place, flow.clone());
        self.flows.insert(flow, Seen { at: now, place });
    }
}

#[cfg(test)]
impl Flows {
    pub(super) fn count(&self) -> usize {
        let shares = self.0.lock();
        shares.values().map(|share| share.flows.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(number: u32) -> Flow {
        Flow {
            owner: Owner::Side,
            protocol: 17,
            beginner: IpAddr::from(number.to_be_bytes()),
            replier: IpAddr::from([10, 8, 0, 2]),
            ports: Some((5000, 53)),
        }
    }

    #[test]
    fn flows_are_bounded_for_each_beginner_and_the_least_recent_is_forgotten() {
        let (flows, mut now) = (Flows::default(), Instant::now());
        let entry = Owner::Session(1);
        flows.begin(None, flow(0), now);
        for (number, beginner) in (0..).zip([None, Some(&entry)]) {
            let most = most_of(beginner);
            for one in 1..=2 * most as u32 {
                now += Duration::from_millis(1);
                flows.begin(beginner, flow(one), now);
            }
            assert_eq!(flows.0.lock()[&beginner.cloned()].flows.len(), most);
            assert_eq!(flows.0.lock().len(), number + 1);
        }
        let shares = flows.0.lock();
        let share = &shares[&None];
        assert!(!share.is_alive(&flow(0), now), "the oldest flow");
        assert!(share.is_alive(&flow(2 * HOST_FLOWS_MAX as u32), now));
        assert_eq!(share.order.len(), share.flows.len());
    }

    #[test]
    fn a_flow_with_packets_stays_and_an_idle_one_does_not() {
        let (mut share, mut now) = (Share::default(), Instant::now());
        share.record(flow(1), now, 2);
        share.record(flow(2), now, 2);
        now += RECORD_INTERVAL;
        share.record(flow(1), now, 2);
        share.record(flow(3), now, 2);
        assert!(share.is_alive(&flow(1), now) && !share.is_alive(&flow(2), now));
        now += IDLE_MAX + RECORD_INTERVAL;
        assert!(!share.is_alive(&flow(1), now));
    }

    #[test]
    fn the_flows_of_an_entry_end_with_its_session() {
        let (flows, now) = (Arc::new(Flows::default()), Instant::now());
        let entry = Owner::Session(1);
        let begins = Begins::of(&flows, &entry);
        flows.begin(Some(&entry), flow(1), now);
        flows.begin(None, flow(1), now);
        drop(begins);
        assert_eq!(flows.count(), 1);
    }
}

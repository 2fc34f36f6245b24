//! Hashes the flow of a packet to a number that a peer cannot predict.

use std::hash::{BuildHasher, RandomState};

use crate::Packet;

/// A keyed hash of the protocol, addresses and ports of a flow. The hash function is the standard
/// library's, which resists chosen input.
///
/// The key is random, so an attacker cannot choose packets that share a queue with another flow.
/// The two directions of a connection have different hashes.
#[derive(Clone, Debug, Default)]
pub struct FlowKey {
    state: RandomState,
}

impl FlowKey {
    /// The hash of a packet's flow. The hash of a packet without ports, such as a fragment, covers
    /// protocol and addresses only. So all fragments of a datagram belong to one flow.
    #[must_use]
    pub fn hash(&self, packet: &Packet) -> u32 {
        let flow = (
            packet.protocol,
            packet.source,
            packet.destination,
            packet.ports,
        );
        // 32 of the 64 bits are enough.
        (self.state.hash_one(flow) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::testing::{Build, framed};

    fn hash(key: &FlowKey, build: &Build) -> u32 {
        key.hash(&check(&framed(&build.bytes())).unwrap())
    }

    #[test]
    fn a_flow_is_its_addresses_ports_and_protocol() {
        let key = FlowKey::default();
        for build in [Build::udp4(10), Build::udp6(10)] {
            let flow = hash(&key, &build);
            assert_eq!(flow, hash(&key, &build.clone().payload(99).hop_limit(9)));
            assert_ne!(flow, hash(&key, &build.clone().ports(1000, 9)));
            assert_ne!(flow, hash(&key, &build.clone().ports(9, 80)));
            assert_ne!(flow, hash(&key, &build.clone().tcp()));
            assert_ne!(flow, hash(&FlowKey::default(), &build));
        }
    }

    #[test]
    fn flows_spread_over_queues() {
        let key = FlowKey::default();
        let mut used = [0_u32; 64];
        for port in 0..6400 {
            let flow = hash(&key, &Build::udp4(1).ports(port + 1, 53));
            used[(flow as usize) % 64] += 1;
        }
        assert!(
            used.iter().all(|count| (50..160).contains(count)),
            "{used:?}"
        );
    }
}

//! Which flow a packet belongs to, as a number that a peer cannot foresee.

use std::net::IpAddr;

use crate::Packet;

/// A keyed hash of flows: SipHash-2-4 (Aumasson and Bernstein, 2012) of protocol, addresses, ports.
///
/// The seed is random for each process, so that nobody can choose packets that share a queue with
/// somebody's flow. Both directions of a connection have different numbers.
#[derive(Clone, Copy, Debug)]
pub struct FlowKey {
    seed: [u64; 2],
}

impl FlowKey {
    /// `seed`: 128 random bits.
    #[must_use]
    pub const fn new(seed: [u64; 2]) -> Self {
        Self { seed }
    }

    /// The number of a packet's flow. Packets without ports, fragments among them, are told apart by
    /// protocol and addresses alone, so all fragments of a datagram are one flow.
    #[must_use]
    pub fn hash(&self, packet: &Packet) -> u32 {
        let (source_port, destination_port) = packet.ports.unwrap_or_default();
        let ports = u64::from(source_port) << 16 | u64::from(destination_port);
        let last = ports << 8 | u64::from(packet.protocol);
        let hash = match (packet.source, packet.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let addresses =
                    u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
                self.sip(&[addresses, last])
            }
            (source, destination) => {
                let (s1, s0) = halves(source);
                let (d1, d0) = halves(destination);
                self.sip(&[s1, s0, d1, d0, last])
            }
        };
        u32::try_from(hash >> 32).unwrap_or_default()
    }

    /// SipHash-2-4 of little-endian words.
    fn sip(&self, words: &[u64]) -> u64 {
        let [k0, k1] = self.seed;
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        for word in words {
            absorb(&mut state, *word);
        }
        // The last word has the length in bytes, modulo 256, in its highest byte.
        absorb(&mut state, (words.len() as u64) << 3 << 56);
        state[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

fn halves(address: IpAddr) -> (u64, u64) {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let low = u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
    (u64::try_from(bits >> 64).unwrap_or_default(), low)
}

fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

fn round([v0, v1, v2, v3]: &mut [u64; 4]) {
    *v0 = v0.wrapping_add(*v1);
    *v1 = v1.rotate_left(13) ^ *v0;
    *v0 = v0.rotate_left(32);
    *v2 = v2.wrapping_add(*v3);
    *v3 = v3.rotate_left(16) ^ *v2;
    *v0 = v0.wrapping_add(*v3);
    *v3 = v3.rotate_left(21) ^ *v0;
    *v2 = v2.wrapping_add(*v1);
    *v1 = v1.rotate_left(17) ^ *v2;
    *v2 = v2.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_plain;
    use crate::testing::Build;

    #[test]
    fn the_hash_is_that_of_the_reference() {
        // Test vectors of the reference implementation: key 00..0f, message 00..07 and 00..0f.
        let key = FlowKey::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(key.sip(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.sip(&[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
        let message = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(key.sip(&message), 0x3f2a_cc7f_57c2_9bdb);
    }

    fn hash(key: &FlowKey, build: &Build) -> u32 {
        key.hash(&check_plain(&build.bytes()).unwrap())
    }

    #[test]
    fn a_flow_is_its_addresses_ports_and_protocol() {
        let key = FlowKey::new([1, 2]);
        for build in [Build::udp4(10), Build::udp6(10)] {
            let flow = hash(&key, &build);
            assert_eq!(flow, hash(&key, &build.clone().payload(99).hop_limit(9)));
            assert_ne!(flow, hash(&key, &build.clone().ports(1000, 9)));
            assert_ne!(flow, hash(&key, &build.clone().ports(9, 80)));
            assert_ne!(flow, hash(&key, &build.clone().tcp()));
            assert_ne!(flow, hash(&FlowKey::new([1, 3]), &build));
        }
    }

    #[test]
    fn flows_spread_over_queues() {
        let key = FlowKey::new([7, 8]);
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

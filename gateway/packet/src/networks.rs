//! Which addresses are on which side of the tunnel: what each may send, and is sent (BCP 38).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{DropReason, Packet};

/// Why a packet is not between the networks of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// A leaving packet comes from elsewhere.
    #[error("the source {0} is in none of this side's networks")]
    SourceNotLocal(IpAddr),
    /// A leaving packet goes elsewhere.
    #[error("the destination {0} is in none of the other side's networks")]
    DestinationNotRemote(IpAddr),
    /// An arriving packet has an address that the other side does not have.
    #[error("the source {0} is in none of the other side's networks")]
    SourceNotRemote(IpAddr),
    /// An arriving packet goes elsewhere.
    #[error("the destination {0} is in none of this side's networks")]
    DestinationNotLocal(IpAddr),
}

impl NetworkError {
    /// The reason that metrics have for it.
    #[must_use]
    pub fn reason(&self) -> DropReason {
        match self {
            Self::SourceNotLocal(_) => DropReason::SourceNotLocal,
            Self::DestinationNotRemote(_) => DropReason::DestinationNotRemote,
            Self::SourceNotRemote(_) => DropReason::SourceNotRemote,
            Self::DestinationNotLocal(_) => DropReason::DestinationNotLocal,
        }
    }
}

/// The networks of both sides, as one side sees them. Each packet looks through the lists in order: they are
/// a configuration's, a few entries long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    local: Vec<IpNet>,
    remote: Vec<IpNet>,
}

impl Networks {
    /// `local`: of this side; `remote`: of the other.
    #[must_use]
    pub fn new(local: Vec<IpNet>, remote: Vec<IpNet>) -> Self {
        Self { local, remote }
    }

    /// Checks a packet from this side's device.
    ///
    /// # Errors
    /// It is not from here to there.
    pub fn check_leaving(&self, packet: &Packet) -> Result<(), NetworkError> {
        if !contains(&self.local, packet.source) {
            return Err(NetworkError::SourceNotLocal(packet.source));
        }
        if !contains(&self.remote, packet.destination) {
            return Err(NetworkError::DestinationNotRemote(packet.destination));
        }
        Ok(())
    }

    /// Checks a packet from the other side, before this side's device is given it.
    ///
    /// # Errors
    /// It is not from there to here.
    pub fn check_arriving(&self, packet: &Packet) -> Result<(), NetworkError> {
        if !contains(&self.remote, packet.source) {
            return Err(NetworkError::SourceNotRemote(packet.source));
        }
        if !contains(&self.local, packet.destination) {
            return Err(NetworkError::DestinationNotLocal(packet.destination));
        }
        Ok(())
    }
}

fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_plain;
    use crate::testing::Build;

    fn networks(local: &[&str], remote: &[&str]) -> Networks {
        let parse = |list: &[&str]| {
            list.iter()
                .map(|network| network.parse().unwrap())
                .collect()
        };
        Networks::new(parse(local), parse(remote))
    }

    fn packet(source: [u8; 4], destination: [u8; 4]) -> Packet {
        let build = Build::udp4(8).source(&source).destination(&destination);
        check_plain(&build.bytes()).unwrap()
    }

    #[test]
    fn packets_are_between_the_networks_of_both_sides() {
        let networks = networks(
            &["10.1.0.0/16", "fd00:1::/32"],
            &["10.2.0.0/16", "fd00:2::/32"],
        );
        let here_there = packet([10, 1, 0, 2], [10, 2, 0, 2]);
        let there_here = packet([10, 2, 0, 2], [10, 1, 0, 2]);
        assert_eq!(networks.check_leaving(&here_there), Ok(()));
        assert_eq!(networks.check_arriving(&there_here), Ok(()));
        let ipv6 = check_plain(&Build::udp6(8).bytes()).unwrap();
        assert_eq!(networks.check_leaving(&ipv6), Ok(()));
        let reasons = [
            networks.check_leaving(&there_here).unwrap_err().reason(),
            networks
                .check_leaving(&packet([10, 1, 0, 2], [10, 1, 0, 3]))
                .unwrap_err()
                .reason(),
            networks.check_arriving(&here_there).unwrap_err().reason(),
            networks
                .check_arriving(&packet([10, 2, 0, 2], [10, 2, 0, 3]))
                .unwrap_err()
                .reason(),
        ];
        let expected = [
            DropReason::SourceNotLocal,
            DropReason::DestinationNotRemote,
            DropReason::SourceNotRemote,
            DropReason::DestinationNotLocal,
        ];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_default_route_has_no_address_of_the_other_version() {
        let networks = networks(&["0.0.0.0/0"], &["0.0.0.0/0"]);
        let ipv6 = check_plain(&Build::udp6(8).bytes()).unwrap();
        assert!(networks.check_leaving(&ipv6).is_err());
        assert_eq!(
            networks.check_leaving(&packet([1, 2, 3, 4], [5, 6, 7, 8])),
            Ok(())
        );
    }
}

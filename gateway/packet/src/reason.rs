//! Reasons of dropped packets, with their labels in metrics.

/// Why a packet was dropped. Labels are stable, because dashboards and alerts use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The packet is not well-formed, or its virtio header does not match.
    Malformed,
    /// A loopback, multicast, broadcast, link-local or unspecified address, or an ICMP message for
    /// neighbours of one link.
    AddressNotCarried,
    /// A leaving packet's source is not in the networks of this side.
    SourceNotLocal,
    /// A leaving packet's destination is not in the networks of the other side.
    DestinationNotRemote,
    /// An arriving packet's source is not in the networks of the other side (BCP 38).
    SourceNotRemote,
    /// An arriving packet's destination is not in the networks of this side.
    DestinationNotLocal,
    /// An arriving packet's source belongs to another peer.
    SourceOfOtherPeer,
    /// The destination is the address at which carriers are dialled, so the carrier would run
    /// inside itself.
    CarrierLoop,
    /// The destination is in the networks of no peer.
    NoRoute,
    /// A rule denies the destination or port.
    Policy,
    /// The packet is longer than the path permits, and splitting it is forbidden or impossible.
    TooBig,
    /// The queue exceeded its limit.
    QueueFull,
    /// `CoDel` dropped the packet, because it waited too long.
    Codel,
    /// No session has a carrier for the packet.
    NoSession,
    /// The device did not accept the packet.
    Device,
}

impl DropReason {
    /// All reasons, in the order of metrics.
    pub const ALL: [Self; 15] = [
        Self::Malformed,
        Self::AddressNotCarried,
        Self::SourceNotLocal,
        Self::DestinationNotRemote,
        Self::SourceNotRemote,
        Self::DestinationNotLocal,
        Self::SourceOfOtherPeer,
        Self::CarrierLoop,
        Self::NoRoute,
        Self::Policy,
        Self::TooBig,
        Self::QueueFull,
        Self::Codel,
        Self::NoSession,
        Self::Device,
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::AddressNotCarried => "address_not_carried",
            Self::SourceNotLocal => "source_not_local",
            Self::DestinationNotRemote => "destination_not_remote",
            Self::SourceNotRemote => "source_not_remote",
            Self::DestinationNotLocal => "destination_not_local",
            Self::SourceOfOtherPeer => "source_of_other_peer",
            Self::CarrierLoop => "carrier_loop",
            Self::NoRoute => "no_route",
            Self::Policy => "policy",
            Self::TooBig => "too_big",
            Self::QueueFull => "queue_full",
            Self::Codel => "codel",
            Self::NoSession => "no_session",
            Self::Device => "device",
        }
    }

    /// The place of this reason in [`Self::ALL`], for an array of counters.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_has_a_label_and_an_index_of_its_own() {
        let labels: BTreeSet<_> = DropReason::ALL
            .iter()
            .map(|reason| reason.label())
            .collect();
        assert_eq!(labels.len(), DropReason::ALL.len());
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }
}

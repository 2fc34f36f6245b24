//! Why a packet was dropped, as metrics name it.

/// Why a packet was dropped. Labels are stable: dashboards and alerts use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Not a well-formed packet, or a virtio header that does not fit to it.
    Malformed,
    /// Loopback, multicast, broadcast, link-local or unspecified, or a message of a link's neighbours.
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
    /// The destination is the one that carriers are dialled at: a route would have them run inside themselves.
    CarrierLoop,
    /// No peer has the destination.
    NoRoute,
    /// A rule denies the destination, protocol or port, or one peer's reach to another.
    Policy,
    /// It is longer than the path takes, and must not or cannot be cut.
    TooBig,
    /// The queue was over its limit.
    QueueFull,
    /// `CoDel`: it waited too long.
    Codel,
    /// There is no session, or no carrier.
    NoSession,
    /// The device did not take it.
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

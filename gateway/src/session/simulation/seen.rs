//! The cases that runs covered.

use super::profile::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::session) enum Seen {
    /// Both applications read an end of file after the last byte.
    CleanEnd,
    /// An end of file in one direction while the other direction continues.
    HalfClose,
    EmptyStream,
    /// A write ended within a header.
    WriteEndsInHeader,
    WriteEndsInPayload,
    ReadEndsInHeader,
    ReadEndsInPayload,
    /// `WouldBlock` after the carrier was ready.
    WriteAgain,
    ReadAgain,
    CarrierFull,
    /// The received bytes of a cut carrier end within a header.
    CutInHeader,
    CutInPayload,
    /// One end of the carrier noticed the cut later than the other.
    HalfCut,
    /// A carrier was cut, but its last bytes arrived.
    CutWithNothingLost,
    /// A cut carrier looked like a carrier that the peer had closed.
    CutAsEnd,
    /// Streams ended with their carrier.
    SessionLost,
    ShutDown,
    GivenUp,
    Refused,
    RefusedWithAnswer,
    GrantedWithAnswer,
    /// Bytes had been read from a client before its open.
    EarlyGiven,
    /// An open was returned.
    OpenReturned,
    /// An open was returned with the client's bytes.
    OpenReturnedWithBytes,
    /// A stream was cut while its target was dialled.
    CutWhileDialling,
    ClientReset,
    TargetReset,
    /// A local socket was full.
    InboxHeld,
    /// Payload waited for its target to be dialled.
    HeldWhileDialling,
    CreditExhausted,
    /// A carrier other than the first carrier was up.
    CarrierJoined,
    SeveralCarriers,
    /// A session continued without one of its carriers.
    Resumed,
    /// Payload was retransmitted.
    SentAgain,
    /// A session continued after it was without any carrier.
    WithoutCarrier,
    /// Payload arrived beyond a gap.
    OutOfOrder,
    CarrierRetired,
    SplicedOut,
    SplicedIn,
    KernelCut,
}

impl Seen {
    /// Cases that only the native protocol can cover.
    const NATIVE: [Self; 11] = [
        Self::HeldWhileDialling,
        Self::OpenReturnedWithBytes,
        Self::CarrierJoined,
        Self::SeveralCarriers,
        Self::Resumed,
        Self::SentAgain,
        Self::WithoutCarrier,
        Self::OutOfOrder,
        Self::CarrierRetired,
        // Frames of JMUX are too short for these cases.
        Self::SplicedOut,
        Self::SplicedIn,
    ];

    const ALL: [Self; 27] = [
        Self::CleanEnd,
        Self::HalfClose,
        Self::EmptyStream,
        Self::WriteEndsInHeader,
        Self::WriteEndsInPayload,
        Self::ReadEndsInHeader,
        Self::ReadEndsInPayload,
        Self::WriteAgain,
        Self::ReadAgain,
        Self::CarrierFull,
        Self::CutInHeader,
        Self::CutInPayload,
        Self::HalfCut,
        Self::CutWithNothingLost,
        Self::CutAsEnd,
        Self::SessionLost,
        Self::ShutDown,
        Self::GivenUp,
        Self::Refused,
        Self::RefusedWithAnswer,
        Self::GrantedWithAnswer,
        Self::EarlyGiven,
        Self::CutWhileDialling,
        Self::ClientReset,
        Self::TargetReset,
        Self::CreditExhausted,
        Self::KernelCut,
    ];

    /// The cases that a sweep over runs of the protocol must have covered.
    pub(super) fn expected(kind: Kind) -> impl Iterator<Item = Self> {
        let own: &[&[Self]] = match kind {
            Kind::Native => &[&[Self::InboxHeld, Self::OpenReturned], &Self::NATIVE],
            Kind::Jmux => &[&[Self::InboxHeld]],
            Kind::Http2 => &[],
        };
        let own = own.iter().flat_map(|cases| cases.iter());
        Self::ALL.iter().chain(own).copied()
    }
}

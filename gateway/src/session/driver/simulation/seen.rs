//! What runs went through.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    /// Both applications read an end of file behind the last byte.
    CleanEnd,
    /// An end of file in one direction while the other goes on.
    HalfClose,
    EmptyStream,
    /// A write was taken up to a byte within a header.
    WriteEndsInHeader,
    WriteEndsInPayload,
    ReadEndsInHeader,
    ReadEndsInPayload,
    /// `WouldBlock` behind a readiness.
    WriteAgain,
    ReadAgain,
    CarrierFull,
    /// The bytes that arrived of a carrier that was cut end within a header.
    CutInHeader,
    CutInPayload,
    /// One end of the carrier noticed later than the other.
    HalfCut,
    /// A carrier was cut and its last bytes arrived all the same.
    CutWithNothingLost,
    /// A carrier was cut and looked like one that ended.
    CutAsEnd,
    /// Streams ended with their carrier.
    SessionLost,
    ShutDown,
    GivenUp,
    Refused,
    RefusedWithAnswer,
    GrantedWithAnswer,
    /// What had been read of a client before its open.
    EarlyGiven,
    /// An open came back.
    OpenReturned,
    /// It came back with what the client had sent.
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
    /// A carrier other than the first one was up.
    CarrierJoined,
    SeveralCarriers,
    /// A session went on without one of its carriers.
    Resumed,
    /// Payload went again.
    SentAgain,
    /// A session was without any carrier and went on.
    WithoutCarrier,
    /// Payload came behind a gap.
    OutOfOrder,
    CarrierRetired,
    SplicedOut,
    SplicedIn,
    KernelCut,
}

impl Seen {
    /// What only the native protocol can come to.
    const NATIVE: [Self; 12] = [
        Self::HeldWhileDialling,
        Self::OpenReturned,
        Self::OpenReturnedWithBytes,
        Self::CarrierJoined,
        Self::SeveralCarriers,
        Self::Resumed,
        Self::SentAgain,
        Self::WithoutCarrier,
        Self::OutOfOrder,
        Self::CarrierRetired,
        // Frames of JMUX are too short for it.
        Self::SplicedOut,
        Self::SplicedIn,
    ];

    const BOTH: [Self; 28] = [
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
        Self::InboxHeld,
        Self::CreditExhausted,
        Self::KernelCut,
    ];

    /// All that a sweep over runs of the protocol must have met.
    pub(super) fn expected(native: bool) -> impl Iterator<Item = Self> {
        let own = if native { &Self::NATIVE[..] } else { &[][..] };
        Self::BOTH.iter().chain(own).copied()
    }
}

//! The states that runs have reached. The runs of a sweep together must reach every state.

use std::collections::BTreeMap;

use super::profile::Protocol;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    CleanEnd,
    /// A stream whose halves had ended delivered its payload after the end of its session.
    DeliveredAfterTheSession,
    HalfClose,
    EmptyStream,
    CreditExhausted,
    SessionCreditExhausted,
    WindowGrown,
    WindowShrunk,
    FrameCut,
    BothPipesFull,
    Refused,
    RefusedWithEarlyData,
    RefusedWithEarlyDataInFlight,
    EarlyData,
    EarlyDataBeforeAccept,
    FinishedBeforeAccept,
    ResetBeforeAccept,
    ResetBeforeAnswer,
    ResetWithBatch,
    ResetAfterFinish,
    ResetsCrossed,
    Cut,
    CutAfterFinish,
    DiscardedAfterReset,
    OpenTimedOut,
    OpenBeforeReady,
    TableFull,
    PeerTableFull,
    GoingAway,
    GoAwayCrossedOpen,
    CarrierLost,
    CarrierCutInFrame,
    CarrierCutInPayload,
    CarrierHalfCut,
    CarrierCutWithNothingLost,
    HelloTimedOut,
    Pong,
    CarrierKept,
    CarrierJoined,
    CarrierResumed,
    CarrierLostBesideOthers,
    OutOfOrder,
    PayloadRepeated,
    PartRepeated,
    JoinRefused,
    ResumeTimedOut,
    RetainExhausted,
    AllCarriersCut,
    CarriersWanted,
    CarrierRetired,
    CarrierRetiredByItsEnd,
    CarrierRetiredByItsPeer,
    RetireCut,
    OpenReturned,
    Stalled,
    Listening,
    ListenEnded,
    ListenGivenUp,
    IdsUsedUp,
    OffsetsUsedUp,
}

impl Seen {
    /// States that only the native protocol can reach.
    const NATIVE: [Self; 35] = [
        Self::OffsetsUsedUp,
        Self::SessionCreditExhausted,
        Self::WindowShrunk,
        Self::EarlyData,
        Self::EarlyDataBeforeAccept,
        Self::FinishedBeforeAccept,
        Self::RefusedWithEarlyData,
        Self::RefusedWithEarlyDataInFlight,
        Self::ResetBeforeAccept,
        Self::OpenBeforeReady,
        Self::PeerTableFull,
        Self::GoingAway,
        Self::GoAwayCrossedOpen,
        Self::HelloTimedOut,
        Self::Pong,
        Self::CarrierJoined,
        Self::CarrierResumed,
        Self::CarrierLostBesideOthers,
        Self::OutOfOrder,
        Self::PayloadRepeated,
        Self::PartRepeated,
        Self::JoinRefused,
        Self::ResumeTimedOut,
        Self::RetainExhausted,
        Self::AllCarriersCut,
        Self::CarriersWanted,
        Self::CarrierRetired,
        Self::CarrierRetiredByItsEnd,
        Self::CarrierRetiredByItsPeer,
        Self::RetireCut,
        Self::OpenReturned,
        Self::Stalled,
        Self::Listening,
        Self::ListenEnded,
        Self::ListenGivenUp,
    ];

    const BOTH: [Self; 24] = [
        Self::IdsUsedUp,
        Self::CleanEnd,
        Self::HalfClose,
        Self::EmptyStream,
        Self::CreditExhausted,
        Self::WindowGrown,
        Self::FrameCut,
        Self::BothPipesFull,
        Self::Refused,
        Self::ResetBeforeAnswer,
        Self::ResetWithBatch,
        Self::ResetAfterFinish,
        Self::ResetsCrossed,
        Self::Cut,
        Self::CutAfterFinish,
        Self::DiscardedAfterReset,
        Self::OpenTimedOut,
        Self::TableFull,
        Self::CarrierLost,
        Self::CarrierCutInFrame,
        Self::CarrierCutInPayload,
        Self::CarrierHalfCut,
        Self::CarrierCutWithNothingLost,
        Self::CarrierKept,
    ];

    /// The states that a sweep over runs of `protocol` must reach.
    pub fn expected(protocol: Protocol) -> impl Iterator<Item = Self> {
        let own = match protocol {
            Protocol::Jmux => &[Self::DeliveredAfterTheSession][..],
            Protocol::Native => &Self::NATIVE[..],
        };
        Self::BOTH.iter().chain(own).copied()
    }
}

/// How often each state occurred, by protocol.
#[derive(Debug, Default, Clone)]
pub struct Sometimes(BTreeMap<(bool, Seen), u64>);

impl Sometimes {
    pub fn note(&mut self, protocol: Protocol, seen: Seen) {
        *self
            .0
            .entry((protocol == Protocol::Native, seen))
            .or_default() += 1;
    }

    pub fn count(&self, protocol: Protocol, seen: Seen) -> u64 {
        let key = (protocol == Protocol::Native, seen);
        self.0.get(&key).copied().unwrap_or_default()
    }

    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }
}

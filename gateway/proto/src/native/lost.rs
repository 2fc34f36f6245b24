//! Lost carriers that are not settled (`resume.rs` defines "settled"), and reports of lost carriers
//! that must be sent to the peer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::codec::Frame;
use super::log::{Again, SendLog};
use crate::session::{CarrierId, StreamId};

/// A lost carrier, until the peer has reported the number of received bytes.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) number: u32,
    pub(super) since: Instant,
    pub(super) log: SendLog,
    pub(super) again: VecDeque<Again>,
    /// Whether the peer has reported the number of received bytes. The frames in `again` then only
    /// wait for another carrier.
    pub(super) told: bool,
    /// Streams whose batch waited for the carrier.
    pub(super) waiting: Vec<(StreamId, usize)>,
}

/// A CARRIER_LOST frame that was sent, the carrier that transmitted it, and the position of its
/// last byte on that carrier.
#[derive(Debug)]
struct Told {
    on: CarrierId,
    end: u64,
    frame: Frame,
}

/// All lost carriers of a session. Bound: [`CARRIERS_MAX`](super::CARRIERS_MAX) lost and live
/// carriers together.
#[derive(Debug, Default)]
pub(super) struct LostCarriers {
    unsettled: BTreeMap<CarrierId, Lost>,
    /// Frames that must be sent.
    tell: VecDeque<Frame>,
    /// Frames that were sent and are not acknowledged.
    told: Vec<Told>,
}

impl LostCarriers {
    /// Number of carriers that are not settled.
    pub(super) fn len(&self) -> usize {
        self.unsettled.len()
    }

    /// Whether all carriers are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    pub(super) fn add(&mut self, id: CarrierId, lost: Lost) {
        self.unsettled.insert(id, lost);
    }

    /// The lost carrier `id`. `None`: the carrier is settled.
    pub(super) fn get_mut(&mut self, id: CarrierId) -> Option<&mut Lost> {
        self.unsettled.get_mut(&id)
    }

    pub(super) fn contains(&self, id: CarrierId) -> bool {
        self.unsettled.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: CarrierId) -> Option<Lost> {
        self.unsettled.remove(&id)
    }

    /// The carrier with this number, if the peer has not reported the number of received bytes.
    pub(super) fn untold(&self, number: u32) -> Option<CarrierId> {
        let untold = |lost: &Lost| lost.number == number && !lost.told;
        let mut unsettled = self.unsettled.iter();
        unsettled.find(|(_, lost)| untold(lost)).map(|(id, _)| *id)
    }

    /// Removes and returns the lost carriers that only wait for another carrier.
    pub(super) fn take_told(&mut self) -> Vec<Lost> {
        let told = self.unsettled.extract_if(.., |_, lost| lost.told);
        told.map(|(_, lost)| lost).collect()
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Lost> {
        self.unsettled.values_mut().next_back()
    }

    /// The time at which the earliest of these carriers was lost.
    pub(super) fn since(&self) -> Option<Instant> {
        self.unsettled.values().map(|lost| lost.since).min()
    }

    /// Queues `frame`, which the peer must receive.
    pub(super) fn tell(&mut self, frame: Frame) {
        self.tell.push_back(frame);
    }

    /// Whether a frame must be sent.
    pub(super) fn is_due(&self) -> bool {
        !self.tell.is_empty()
    }

    /// The next frame to send.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        self.tell.pop_front()
    }

    /// Records that `frame` was sent on the carrier `on`, and ends at byte `end` of this carrier.
    pub(super) fn note_told(&mut self, on: CarrierId, end: u64, frame: Frame) {
        self.told.push(Told { on, end, frame });
    }

    /// Records that the peer has received `received` bytes of the carrier `on`.
    pub(super) fn acknowledge(&mut self, on: CarrierId, received: u64) {
        self.told
            .retain(|told| told.on != on || told.end > received);
    }

    /// Queues again the frames that were sent on the lost carrier `on`.
    pub(super) fn say_again(&mut self, on: CarrierId) {
        let told = self.told.extract_if(.., |told| told.on == on);
        self.tell.extend(told.map(|told| told.frame));
    }

    /// Whether the peer has been informed of all lost carriers and has reported the number of bytes
    /// received on each.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.tell.is_empty() && self.told.is_empty()
    }
}

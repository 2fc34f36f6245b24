//! Carriers that are gone: those that are not settled, and those of which the peer has to learn.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::codec::Frame;
use super::log::{Again, SendLog};
use crate::session::{CarrierId, StreamId};

/// A carrier that is gone, until the peer has said how much of it came there.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) number: u32,
    pub(super) since: Instant,
    pub(super) log: SendLog,
    pub(super) again: VecDeque<Again>,
    /// The peer has said it, and `again` waits for a carrier.
    pub(super) told: bool,
    /// Streams with a batch that waited for it.
    pub(super) waiting: Vec<(StreamId, usize)>,
}

/// CARRIER_LOST that was said: on which carrier, up to which of its bytes.
#[derive(Debug)]
struct Told {
    on: CarrierId,
    end: u64,
    frame: Frame,
}

/// All of a session's. Bound: [`CARRIERS_MAX`](super::CARRIERS_MAX) with those that live.
#[derive(Debug, Default)]
pub(super) struct LostCarriers {
    unsettled: BTreeMap<CarrierId, Lost>,
    /// To be said.
    tell: VecDeque<Frame>,
    /// Said, and not acknowledged.
    told: Vec<Told>,
}

impl LostCarriers {
    /// How many are not settled.
    pub(super) fn len(&self) -> usize {
        self.unsettled.len()
    }

    /// Whether all are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.unsettled.is_empty()
    }

    pub(super) fn add(&mut self, id: CarrierId, lost: Lost) {
        self.unsettled.insert(id, lost);
    }

    /// `None`: it is settled.
    pub(super) fn get_mut(&mut self, id: CarrierId) -> Option<&mut Lost> {
        self.unsettled.get_mut(&id)
    }

    pub(super) fn contains(&self, id: CarrierId) -> bool {
        self.unsettled.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: CarrierId) -> Option<Lost> {
        self.unsettled.remove(&id)
    }

    /// The one of that number of which the peer has not said how much came.
    pub(super) fn untold(&self, number: u32) -> Option<CarrierId> {
        let untold = |lost: &Lost| lost.number == number && !lost.told;
        let mut unsettled = self.unsettled.iter();
        unsettled.find(|(_, lost)| untold(lost)).map(|(id, _)| *id)
    }

    /// Those that only wait for a carrier.
    pub(super) fn take_told(&mut self) -> Vec<Lost> {
        let told = self.unsettled.extract_if(.., |_, lost| lost.told);
        told.map(|(_, lost)| lost).collect()
    }

    pub(super) fn newest_mut(&mut self) -> Option<&mut Lost> {
        self.unsettled.values_mut().next_back()
    }

    /// Since when the oldest one is not settled.
    pub(super) fn since(&self) -> Option<Instant> {
        self.unsettled.values().map(|lost| lost.since).min()
    }

    /// The peer has to learn `frame`.
    pub(super) fn tell(&mut self, frame: Frame) {
        self.tell.push_back(frame);
    }

    /// Whether there is something to be said.
    pub(super) fn is_due(&self) -> bool {
        !self.tell.is_empty()
    }

    /// The next frame to be said.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        self.tell.pop_front()
    }

    /// `frame` is said, and ends at byte `end` of the carrier `on`.
    pub(super) fn note_told(&mut self, on: CarrierId, end: u64, frame: Frame) {
        self.told.push(Told { on, end, frame });
    }

    /// The peer has received `received` bytes of the carrier `on`.
    pub(super) fn acknowledge(&mut self, on: CarrierId, received: u64) {
        self.told
            .retain(|told| told.on != on || told.end > received);
    }

    /// The carrier `on` is gone: what was said on it has to be said again.
    pub(super) fn say_again(&mut self, on: CarrierId) {
        let told = self.told.extract_if(.., |told| told.on == on);
        self.tell.extend(told.map(|told| told.frame));
    }

    /// Whether the peer knows of all, and has said what it received of them.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.tell.is_empty() && self.told.is_empty()
    }
}

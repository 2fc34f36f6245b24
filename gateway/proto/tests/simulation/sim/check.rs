//! Invariants at every step, and invariants when nothing is in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use muxtunnel_proto::{CreditView, StreamId};

use super::link::Link;
use super::model::Flow;
use super::profile::Protocol;
use super::seen::Seen;
use super::socket::Phase;
use super::world::World;

/// After this time without consumption a stream may lose its grown window.
const IDLE: Duration = Duration::from_secs(10);

impl World {
    /// Checks the invariants of every step.
    pub fn check(&mut self) {
        for side in 0..2 {
            if !self.model.lost[side] {
                self.check_memory(side);
            }
        }
        if self.model.lost == [false; 2] {
            self.check_credit(|recv, owed_by_carrier| recv >= owed_by_carrier);
        }
        self.watch_windows();
    }

    /// Checks that payload held for sockets is accounted for, and that memory is bounded.
    fn check_memory(&self, side: usize) {
        let state = &self.sides[side];
        let used = state.session.receive_budget_used();
        let budget = self.profile.ends[side].receive_budget;
        assert!(used <= budget, "{used} bytes in a budget of {budget}");
        let mut accounted = 0;
        for (id, socket) in &state.sockets {
            let Some(credit) = state.session.credit(*id) else {
                assert_eq!(socket.held, 0, "the stream of held payload is gone");
                continue;
            };
            let flow = &self.model.streams[socket.label as usize].flows[1 - side];
            let kept = match socket.cut {
                Some(_) => self.whole_prefix(side, *id, flow),
                None => socket.announced,
            };
            assert_eq!(
                credit.buffered,
                kept - flow.delivered,
                "stream {}: {socket:?} {flow:?}",
                socket.label
            );
            accounted += credit.buffered;
            if self.profile.protocol == Protocol::Jmux {
                accounted += credit.recv + credit.owed;
            }
        }
        assert!(
            accounted <= used,
            "{accounted} bytes held, {used} accounted"
        );
        if self.profile.protocol == Protocol::Native {
            assert_eq!(accounted, used, "bytes are accounted for, but not held");
            self.wire.check_session_credit(side, budget, used);
            self.check_windows(side);
        }
    }

    /// Offset of the first gap of a stream, without the payload that is still arriving on a
    /// carrier.
    fn whole_prefix(&self, side: usize, stream: StreamId, flow: &Flow) -> u64 {
        let carriers = self.links.iter().filter_map(|link| link.ids[side]);
        let arriving = carriers.filter_map(|carrier| self.sides[side].session.receiving(carrier));
        let arriving = arriving.filter(|receive| receive.stream == Some(stream));
        let mut pieces: BTreeMap<u64, u64> = arriving
            .map(|receive| {
                let start = self.profile.bytes_before(receive.offset);
                (start, start + receive.length as u64)
            })
            .collect();
        pieces.extend(flow.early.iter());
        let mut whole = flow.arrived;
        for (start, end) in pieces {
            if start <= whole {
                whole = whole.max(end);
            }
        }
        whole
    }

    /// Checks the sum of granted windows beyond the consumed bytes. The bound is three quarters of
    /// the budget. Only first windows may exceed it.
    fn check_windows(&self, side: usize) {
        let most = self.profile.ends[side].receive_budget / 4 * 3;
        let first = self.wire.first_window(side);
        let (mut sum, mut bound) = (0, most);
        for (id, socket) in &self.sides[side].sockets {
            let Some(limit) = self.wire.stream_limit(side, id.number()) else {
                continue;
            };
            let record = &self.model.streams[socket.label as usize];
            let promised = limit - record.flows[1 - side].delivered;
            assert!(
                promised <= most.max(first),
                "stream {} has a window of {promised} bytes",
                socket.label
            );
            sum += promised;
            bound += first;
        }
        // Credit that was granted to an idle stream is not withdrawn.
        if self.now - self.began < IDLE {
            assert!(sum <= bound, "side {side}: windows of {sum} bytes");
        }
    }

    /// Checks `holds(r, s)` for each stream. r is the number of bytes that the receiver still
    /// accepts. s is the number of bytes that the sender may still send, plus the bytes in flight.
    fn check_credit(&self, holds: impl Fn(u64, u64) -> bool) {
        for (id, label, sender) in self.open_flows() {
            let (Some(here), Some(there)) =
                (self.credit(sender, id), self.peer_credit(sender, id, label))
            else {
                continue;
            };
            let receiver = 1 - sender;
            let flow = &self.model.streams[label as usize].flows[sender];
            let announced = self.announced(receiver, label);
            let entitled = here.send + flow.sent - announced;
            assert!(
                holds(there.recv, entitled),
                "stream {label} from side {sender}: receiver accepts {} bytes, credit plus bytes in flight {entitled}",
                there.recv
            );
        }
    }

    /// Streams that exist on both sides, once for each direction that the sender has not ended.
    fn open_flows(&self) -> impl Iterator<Item = (StreamId, u32, usize)> {
        (0..2).flat_map(move |side| {
            self.sides[side]
                .sockets
                .iter()
                .filter_map(move |(id, socket)| {
                    let early = self.profile.protocol == Protocol::Native;
                    let open =
                        socket.phase == Phase::Open || (early && socket.phase == Phase::Opening);
                    let record = &self.model.streams[socket.label as usize];
                    let cut = record.gave_up.iter().any(Option::is_some) || socket.cut.is_some();
                    (open && !cut && !socket.ended).then_some((*id, socket.label, side))
                })
        })
    }

    fn credit(&self, side: usize, id: StreamId) -> Option<CreditView> {
        self.sides[side].session.credit(id)
    }

    /// Offset up to which the payload of `label` has been announced to `side`.
    fn announced(&self, side: usize, label: u32) -> u64 {
        let mut sockets = self.sides[side].sockets.values();
        sockets
            .find(|socket| socket.label == label)
            .map_or(0, |socket| socket.announced)
    }

    fn peer_credit(&self, side: usize, id: StreamId, label: u32) -> Option<CreditView> {
        let peer = &self.sides[1 - side];
        let (peer_id, socket) = peer
            .sockets
            .iter()
            .find(|(_, socket)| socket.label == label)?;
        let agreed = socket.phase == Phase::Open || self.profile.protocol == Protocol::Native;
        let credit = peer.session.credit(*peer_id).filter(|_| agreed)?;
        assert_eq!(
            credit.peer,
            id.number(),
            "the sides number stream {label} differently"
        );
        Some(credit)
    }

    fn watch_windows(&mut self) {
        let mut seen = Vec::new();
        for side in &mut self.sides {
            for (id, socket) in &mut side.sockets {
                let Some(credit) = side.session.credit(*id) else {
                    continue;
                };
                let window = credit.recv + credit.buffered + credit.owed;
                if socket.window_max > 0 && window >= 2 * socket.window_max {
                    seen.push(Seen::WindowGrown);
                }
                let receives = !socket.finish_seen && socket.cut.is_none();
                if receives && window <= socket.window_max / 2 {
                    seen.push(Seen::WindowShrunk);
                }
                socket.window_max = socket.window_max.max(window);
            }
        }
        for seen in seen {
            self.see(seen);
        }
    }

    /// Empties the carrier and compares the states of both ends.
    pub fn settle_and_check(&mut self) {
        let pipes = |links: &mut Vec<Link>| -> Vec<bool> {
            let pipes = links.iter_mut().flat_map(|link| &mut link.pipes);
            pipes
                .map(|pipe| std::mem::take(&mut pipe.stalled))
                .collect()
        };
        let stalled = pipes(&mut self.links);
        self.settle();
        if self.model.lost == [false; 2] && self.alive() > 0 {
            self.check_credit(|recv, owed_by_carrier| recv == owed_by_carrier);
            for side in 0..2 {
                self.check_table(side);
                let state = &self.sides[side];
                assert!(
                    state.session.is_settled(),
                    "side {side} waits for an acknowledgement"
                );
                assert!(
                    state.retained.is_empty(),
                    "side {side} retains {:?}",
                    state.retained
                );
            }
            let used = [0, 1].map(|side| self.sides[side].session.receive_budget_used());
            self.wire.check_at_rest(used);
        }
        let pipes = self.links.iter_mut().flat_map(|link| &mut link.pipes);
        for (pipe, stalled) in pipes.zip(stalled) {
            pipe.stalled = stalled;
        }
    }

    /// Checks that the table has exactly the streams of the sockets when nothing is in flight.
    fn check_table(&self, side: usize) {
        let Self { sides, .. } = self;
        for id in sides[side].session.streams() {
            assert!(
                sides[side].sockets.contains_key(&id),
                "side {side} keeps {id:?}, which both sides have given up"
            );
        }
        for (id, socket) in &sides[side].sockets {
            assert!(
                !socket.is_complete(),
                "{id:?} is complete but still in the table: {socket:?}"
            );
        }
    }
}

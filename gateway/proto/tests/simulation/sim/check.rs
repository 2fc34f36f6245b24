//! What holds at every moment, and what holds when nothing is in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use muxtunnel_proto::{CreditView, StreamId};

use super::link::Link;
use super::model::Flow;
use super::profile::Protocol;
use super::seen::Seen;
use super::socket::Phase;
use super::world::World;

/// A stream that consumes nothing for so long may lose its grown window.
const IDLE: Duration = Duration::from_secs(10);

impl World {
    /// After every step.
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

    /// Payload held for sockets is accounted for, and both are bounded.
    fn check_memory(&self, side: usize) {
        let state = &self.sides[side];
        let used = state.session.receive_budget_used();
        let budget = self.profile.ends[side].receive_budget;
        assert!(used <= budget, "{used} bytes in a budget of {budget}");
        let mut accounted = 0;
        for (id, socket) in &state.sockets {
            let Some(credit) = state.session.credit(*id) else {
                assert_eq!(socket.held, 0, "a stream is gone before its payload");
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
            assert_eq!(accounted, used, "bytes are accounted that nobody holds");
            self.wire.check_session_credit(side, budget, used);
            self.check_windows(side);
        }
    }

    /// Up to which offset a stream has no gap, with the payload that is still arriving on a carrier.
    fn whole_prefix(&self, side: usize, stream: StreamId, flow: &Flow) -> u64 {
        let carriers = self.links.iter().filter_map(|link| link.ids[side]);
        let arriving = carriers.filter_map(|carrier| self.sides[side].session.receiving(carrier));
        let arriving = arriving.filter(|receive| receive.stream == Some(stream));
        let mut pieces: BTreeMap<u64, u64> = arriving
            .map(|receive| (receive.offset, receive.offset + receive.length as u64))
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

    /// What is promised to single streams, beyond what was consumed of them: three quarters of the
    /// budget, but for first windows, which may overcommit.
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
        // What was promised to a stream that has fallen idle stays promised.
        if self.now - self.began < IDLE {
            assert!(sum <= bound, "side {side}: windows of {sum} bytes");
        }
    }

    /// `holds(r, s)`: r, what a receiver still takes on a stream; s, what its sender may still send
    /// and what is on its way.
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
                "stream {label} from side {sender}: the receiver takes {}, the sender and the carrier have {entitled}",
                there.recv
            );
        }
    }

    /// Streams that both sides know, each for the direction that one side sends and has not ended.
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

    /// Up to which offset the payload of `label` has been announced to `side`.
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
        assert_eq!(credit.peer, id.number(), "stream {label} has two numbers");
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

    /// Empties the carrier and compares both ends' books.
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
                    "side {side} keeps {:?}",
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

    /// At rest the table holds the streams of the sockets, and nothing else.
    fn check_table(&self, side: usize) {
        let Self { sides, .. } = self;
        for id in sides[side].session.streams() {
            assert!(
                sides[side].sockets.contains_key(&id),
                "side {side} keeps {id:?}, which both sides have given up"
            );
        }
        for (id, socket) in &sides[side].sockets {
            assert!(!socket.is_complete(), "{id:?} is over and kept: {socket:?}");
        }
    }
}

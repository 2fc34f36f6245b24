//! The bridge as a [`Mux`].

use std::rc::Rc;

use muxtunnel_proto::{Assignment, Priority};

use super::Bridge;
use super::link::Link;
use crate::io::carrier::Carrier;
use crate::io::local_socket::LocalAddress;
use crate::io::transport::{Proof, Standing};
use crate::io::tun::Offloads;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{
    CarrierFigures, CarrierPool, Datagrams, HearsAssignment, HearsPacket, Listeners, Local, Mux,
    NoCarrier, NotOpened, PacketLimit, PoolState, Progress, Refused,
};
use crate::stream::early_data::Connection;
use crate::stream::packet::Packet;

impl<L: Link> Mux for Rc<Bridge<L>> {
    fn open(
        &self,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        Bridge::open(self, (target, priority), client, refused)
    }

    fn run(&self) -> Local<'_, SessionEnd> {
        Box::pin(Bridge::run(self))
    }

    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()> {
        Box::pin(Bridge::guard(Self::clone(self), task))
    }

    fn go_away(&self) {
        for member in self.all_links() {
            self.take_no_more(&member);
        }
    }

    fn leave(&self) {
        self.advance(Progress::GoingAway);
    }

    fn shut_down(&self) {
        self.end(SessionEnd::ShutDown);
    }

    fn give_up(&self, reason: String) {
        self.end(SessionEnd::GivenUp(reason));
    }

    fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    fn reached(&self, wanted: Progress) -> Local<'_, ()> {
        Box::pin(Bridge::reached(self, wanted))
    }

    fn has_ended(&self) -> bool {
        Bridge::has_ended(self)
    }

    fn stream_count(&self) -> usize {
        Bridge::stream_count(self)
    }

    fn idle(&self) -> Local<'_, ()> {
        Box::pin(Bridge::idle(self))
    }

    fn streams_gone(&self) -> Local<'_, ()> {
        Box::pin(Bridge::streams_gone(self))
    }

    fn peer(&self) -> Rc<str> {
        Bridge::peer(self)
    }

    fn identity(&self) -> Option<Rc<str>> {
        Bridge::identity(self)
    }

    /// A session without a link ends, so it never waits for a link.
    fn waits(&self) -> bool {
        false
    }

    fn answers(&self) -> bool {
        Bridge::answers(self)
    }

    fn ask(&self) {
        Bridge::ask_all(self);
    }

    fn owes_an_answer(&self) -> bool {
        Bridge::owes_an_answer(self)
    }

    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing) {
        Bridge::verify_again(self, standing);
    }

    fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        Bridge::cut_denied(self, denied);
    }

    fn carriers(&self) -> Option<&dyn CarrierPool> {
        Some(self)
    }

    fn listeners(&self) -> Option<&dyn Listeners> {
        let can = self.config.protocol.can();
        can.listen.then_some(self as &dyn Listeners)
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        self.packets.are_agreed().then_some(self as &dyn Datagrams)
    }
}

impl<L: Link> Datagrams for Rc<Bridge<L>> {
    fn hear(&self, hears: HearsPacket, offloads: Offloads) {
        self.packets.hear(hears, offloads);
    }

    fn send(&self, flow: u32, packet: Packet) {
        let now = tokio::time::Instant::now().into_std();
        self.packets.push(now, flow, packet);
    }

    fn limit(&self) -> Option<PacketLimit> {
        self.packet_limit()
    }

    fn assign(&self, assignment: Assignment) -> bool {
        self.packets.assign(assignment);
        true
    }

    fn hear_assignment(&self, hears: HearsAssignment) {
        self.packets.hear_assignment(hears);
    }
}

impl<L: Link> CarrierPool for Rc<Bridge<L>> {
    fn add(
        &self,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier> {
        let member = Bridge::add(self, carrier, unread, place)?;
        Ok(Box::pin(async move { member.settled().await }))
    }

    fn retire_one(&self) -> bool {
        Bridge::retire_one(self)
    }

    fn figures(&self) -> Vec<CarrierFigures> {
        Bridge::figures(self)
    }

    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        Bridge::outdate(self, which);
    }

    fn resumes(&self) -> bool {
        false
    }

    fn numbers(&self) -> PoolState {
        Bridge::numbers(self)
    }

    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()> {
        Box::pin(async move {
            let mut numbers = self.numbers.subscribe();
            // `wait_for` cannot fail: the sender is in `self`.
            let _ = numbers.wait_for(is).await;
        })
    }
}

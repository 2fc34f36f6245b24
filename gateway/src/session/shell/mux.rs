//! The shell as a [`Mux`].

use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::{Assignment, Priority};

use super::{Engine, Shell, now};
use crate::io::carrier::Carrier;
use crate::io::local_socket::LocalAddress;
use crate::io::proof::{Proof, Standing};
use crate::io::tun::Offloads;
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::session::mux::{
    CarrierFigures, CarrierPool, Datagrams, HearsAssignment, HearsPacket, Listeners, Local, Mux,
    NoCarrier, NotOpened, PacketLimit, PoolState, Progress, Refused,
};
use crate::stream::early_data::Connection;
use crate::stream::packet::Packet;

impl<E: Engine> Mux for Rc<Shell<E>> {
    fn open(
        &self,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        E::open(self, target, priority, client, refused)
    }

    fn run(&self) -> Local<'_, SessionEnd> {
        Box::pin(Shell::run(self))
    }

    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()> {
        Box::pin(Shell::guard(Self::clone(self), task))
    }

    fn go_away(&self) {
        E::go_away(self);
    }

    fn leave(&self) {
        Shell::leave(self);
    }

    fn shut_down(&self) {
        self.end(SessionEnd::ShutDown);
    }

    fn give_up(&self, reason: String) {
        self.end(SessionEnd::GivenUp(reason));
    }

    fn progress(&self) -> Progress {
        Shell::progress(self)
    }

    fn reached(&self, wanted: Progress) -> Local<'_, ()> {
        Box::pin(Shell::reached(self, wanted))
    }

    fn has_ended(&self) -> bool {
        Shell::has_ended(self)
    }

    fn stream_count(&self) -> usize {
        Shell::stream_count(self)
    }

    fn idle(&self) -> Local<'_, ()> {
        Box::pin(Shell::idle(self))
    }

    fn streams_gone(&self, within: Duration) -> Local<'_, ()> {
        Box::pin(async move {
            Shell::streams_gone(self, within).await;
        })
    }

    fn peer(&self) -> Rc<str> {
        Shell::peer(self)
    }

    fn identity(&self) -> Option<Rc<str>> {
        Shell::identity(self)
    }

    fn waits(&self) -> bool {
        let is_lost = self.carriers.has_begun() && self.carriers.view().is_empty();
        is_lost && !self.has_ended()
    }

    fn answers(&self) -> bool {
        let up = self.carriers.up();
        !up.is_empty() && up.iter().all(|carrier| E::answers(carrier))
    }

    fn ask(&self) {
        for carrier in self.carriers.up() {
            E::ask(self, &carrier);
        }
    }

    fn owes_an_answer(&self) -> bool {
        let up = self.carriers.up();
        up.iter().any(|carrier| E::owes_an_answer(carrier))
    }

    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing) {
        Shell::verify_again(self, standing);
    }

    fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        Shell::cut_denied(self, denied);
    }

    fn carriers(&self) -> Option<&dyn CarrierPool> {
        Some(self)
    }

    fn listeners(&self) -> Option<&dyn Listeners> {
        self.config
            .protocol
            .can()
            .listen
            .then(|| E::listeners(self))
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        self.packets.are_agreed().then_some(self as &dyn Datagrams)
    }
}

impl<E: Engine> Datagrams for Rc<Shell<E>> {
    fn hear(&self, hears: HearsPacket, offloads: Offloads) {
        self.packets.hear(hears, offloads);
    }

    fn send(&self, flow: u32, packet: Packet) {
        self.packets.push(now(), flow, packet);
        E::packet_waits(self);
    }

    fn limit(&self) -> Option<PacketLimit> {
        E::packet_limit(self)
    }

    fn assign(&self, assignment: Assignment) -> bool {
        E::assign(self, assignment)
    }

    fn hear_assignment(&self, hears: HearsAssignment) {
        self.packets.hear_assignment(hears);
    }
}

impl<E: Engine> CarrierPool for Rc<Shell<E>> {
    fn add(
        &self,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier> {
        let carrier = Shell::add(self, carrier, unread, place)?;
        Ok(Box::pin(async move { carrier.settled().await }))
    }

    fn add_by_another_way(&self, carrier: Carrier) -> Result<Local<'static, bool>, NoCarrier> {
        let carrier = Shell::add(self, carrier, Vec::new(), None)?;
        E::may_lead_elsewhere(self, &carrier);
        Ok(Box::pin(async move { carrier.settled().await }))
    }

    /// Chooses a carrier marked for replacement, otherwise the newest carrier.
    fn retire_one(&self) -> bool {
        let up = self.carriers.up().into_iter();
        let chosen = up.max_by_key(|carrier| (carrier.outdated.get(), carrier.number));
        chosen.is_some_and(|carrier| E::retire(self, &carrier))
    }

    fn figures(&self) -> Vec<CarrierFigures> {
        let up = self.carriers.up();
        up.iter().map(|carrier| carrier.figures()).collect()
    }

    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        for carrier in self.carriers.all() {
            let outdated = carrier.outdated.get() || which(&carrier.figures());
            carrier.outdated.set(outdated);
        }
        E::count_up(self);
    }

    fn resumes(&self) -> bool {
        E::resumes(self)
    }

    fn numbers(&self) -> PoolState {
        *self.carriers.numbers.borrow()
    }

    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()> {
        Box::pin(async move {
            let mut numbers = self.carriers.numbers.subscribe();
            // `wait_for` cannot fail: the sender is in `self`.
            let _ = numbers.wait_for(is).await;
        })
    }
}

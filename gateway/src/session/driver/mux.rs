//! The driver as a [`Mux`].

use std::rc::Rc;

use muxtunnel_proto::{Assignment, ListenError, ListenId, Priority, Refusal};

use super::{Driver, SessionEnd};
use crate::io::carrier::Carrier;
use crate::io::local_socket::LocalAddress;
use crate::io::transport::{Proof, Standing};
use crate::io::tun::Offloads;
use crate::session::handover::Place;
use crate::session::mux::{
    CarrierFigures, CarrierPool, Datagrams, Hears, HearsAssignment, HearsPacket, Listeners, Local,
    Mux, NoCarrier, NotOpened, PacketLimit, PoolState, Progress, Refused,
};
use crate::stream::early_data::Connection;
use crate::stream::packet::Packet;

impl Datagrams for Rc<Driver> {
    fn hear(&self, hears: HearsPacket, offloads: Offloads) {
        self.packets.hear(hears, offloads);
    }

    fn send(&self, flow: u32, packet: Packet) {
        self.packets.push(super::now(), flow, packet);
        let carriers = self.carriers.view();
        carriers
            .values()
            .for_each(|carrier| carrier.wake_transmit());
    }

    fn limit(&self) -> Option<PacketLimit> {
        None
    }

    fn assign(&self, assignment: Assignment) -> bool {
        self.update(|session| session.assign(&assignment))
    }

    fn hear_assignment(&self, hears: HearsAssignment) {
        self.packets.hear_assignment(hears);
    }
}

impl Mux for Rc<Driver> {
    fn open(
        &self,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        Driver::open(self, target, priority, client, refused)
    }

    fn run(&self) -> Local<'_, SessionEnd> {
        Box::pin(Driver::run(self))
    }

    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()> {
        Box::pin(Driver::guard(Self::clone(self), task))
    }

    fn go_away(&self) {
        Driver::go_away(self);
    }

    fn leave(&self) {
        Driver::leave(self);
    }

    fn shut_down(&self) {
        Driver::shut_down(self);
    }

    fn give_up(&self, reason: String) {
        Driver::give_up(self, reason);
    }

    fn progress(&self) -> Progress {
        Driver::progress(self)
    }

    fn reached(&self, wanted: Progress) -> Local<'_, ()> {
        Box::pin(Driver::reached(self, wanted))
    }

    fn has_ended(&self) -> bool {
        Driver::has_ended(self)
    }

    fn stream_count(&self) -> usize {
        Driver::stream_count(self)
    }

    fn idle(&self) -> Local<'_, ()> {
        Box::pin(Driver::idle(self))
    }

    fn streams_gone(&self) -> Local<'_, ()> {
        Box::pin(Driver::streams_gone(self))
    }

    fn peer(&self) -> Rc<str> {
        Driver::peer(self)
    }

    fn identity(&self) -> Option<Rc<str>> {
        Driver::identity(self)
    }

    fn waits(&self) -> bool {
        Driver::waits(self)
    }

    fn answers(&self) -> bool {
        Driver::answers(self)
    }

    fn ask(&self) {
        Driver::ask(self);
    }

    fn owes_an_answer(&self) -> bool {
        Driver::owes_an_answer(self)
    }

    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing) {
        Driver::verify_again(self, standing);
    }

    fn cut_denied(&self, denied: &dyn Fn(&str, &LocalAddress) -> bool) {
        Driver::cut_denied(self, denied);
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        self.packets.are_agreed().then_some(self as &dyn Datagrams)
    }

    fn carriers(&self) -> Option<&dyn CarrierPool> {
        Some(self)
    }

    fn listeners(&self) -> Option<&dyn Listeners> {
        Some(self)
    }
}

impl CarrierPool for Rc<Driver> {
    fn add(
        &self,
        carrier: Carrier,
        unread: Vec<u8>,
        place: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier> {
        let transport = carrier.into_bytes().map_err(NoCarrier::Refused)?;
        let carrier = self.add_carrier(transport, unread, place)?;
        Ok(Box::pin(async move { carrier.settled().await }))
    }

    fn add_by_another_way(&self, carrier: Carrier) -> Result<Local<'static, bool>, NoCarrier> {
        let transport = carrier.into_bytes().map_err(NoCarrier::Refused)?;
        let carrier = self.add_carrier(transport, Vec::new(), None)?;
        self.update(|session| session.may_lead_elsewhere(carrier.id));
        Ok(Box::pin(async move { carrier.settled().await }))
    }

    fn retire_one(&self) -> bool {
        Driver::retire_one(self)
    }

    fn figures(&self) -> Vec<CarrierFigures> {
        Driver::figures(self)
    }

    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        Driver::outdate(self, which);
    }

    fn resumes(&self) -> bool {
        Driver::resumes(self)
    }

    fn numbers(&self) -> PoolState {
        *self.carriers.numbers().borrow()
    }

    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()> {
        Box::pin(async move {
            let mut numbers = self.carriers.numbers().subscribe();
            // `wait_for` cannot fail: the sender is in `self`.
            let _ = numbers.wait_for(is).await;
        })
    }
}

impl Listeners for Rc<Driver> {
    fn hear(&self, hears: Hears) {
        let _ = self.hears.set(hears);
    }

    fn listen(&self, address: &str, priority: Priority) -> Result<ListenId, ListenError> {
        self.update(|session| session.listen(address, priority))
    }

    fn unlisten(&self, listen: ListenId) {
        self.update(|session| session.unlisten(listen));
    }

    fn listening(&self, listen: ListenId, address: &str) {
        self.update(|session| session.listening(listen, address));
    }

    fn end_listen(&self, listen: ListenId, refusal: Refusal) {
        self.update(|session| session.end_listen(listen, refusal));
    }
}

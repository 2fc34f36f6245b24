//! A mux in memory for tests of code that uses a mux. Opens go straight to the dialler of the other
//! end.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::status::CarrierTransport;
use muxtunnel_proto::{ListenError, ListenEvent, ListenId, OpenError, Priority, Refusal};
use tokio::io::copy_bidirectional;
use tokio::sync::watch;

use super::{
    CarrierFigures, CarrierPool, Dial, Dialler, Hears, Listeners, Local, Mux, NoCarrier, NotOpened,
    OpenEnd, PoolState, Progress, Refused,
};
use crate::io::carrier::Carrier;
use crate::io::duplex::ByteStream;
use crate::io::local_socket::LocalAddress;
use crate::io::proof::{Proof, Standing};
use crate::session::end::SessionEnd;
use crate::session::handover::Place;
use crate::stream::early_data::Connection;

/// One end of the mux, and the dialler of its other end.
pub(crate) struct Memory {
    dialler: Dialler,
    identity: Option<Rc<str>>,
    progress: watch::Sender<Progress>,
    numbers: watch::Sender<PoolState>,
    streams: watch::Sender<usize>,
    ended: watch::Sender<bool>,
    hears: OnceCell<Hears>,
    /// The answers to the peer's requests for listeners.
    told: RefCell<Vec<(ListenId, Result<String, String>)>>,
    listened: Cell<u32>,
    /// The carriers of a mux that accepts any carriers, see [`Self::takes_carriers`].
    carriers: RefCell<Vec<Member>>,
    /// Maximum number of carriers of a mux that takes carriers.
    carriers_max: Cell<Option<usize>>,
    /// Whether the peer answers.
    pub(crate) answers: Cell<bool>,
    /// Whether the peer owes the answer to a request.
    pub(crate) owes: Cell<bool>,
    /// Number of requests for an answer.
    pub(crate) asked: Cell<u32>,
}

struct Member {
    figures: CarrierFigures,
    outdated: bool,
    /// Kept so that the connection stays open.
    _carrier: Option<Carrier>,
}

/// Creates a ready mux with one carrier, whose peer has proved `identity`.
pub(crate) fn memory(identity: Option<&str>, dialler: Dialler) -> Rc<Memory> {
    let up = PoolState {
        up: 1,
        ..PoolState::default()
    };
    Rc::new(Memory {
        dialler,
        identity: identity.map(Into::into),
        progress: watch::Sender::new(Progress::Ready),
        numbers: watch::Sender::new(up),
        streams: watch::Sender::new(0),
        ended: watch::Sender::new(false),
        hears: OnceCell::new(),
        told: RefCell::default(),
        listened: Cell::new(0),
        carriers: RefCell::default(),
        carriers_max: Cell::new(None),
        answers: Cell::new(true),
        owes: Cell::new(false),
        asked: Cell::new(0),
    })
}

/// Creates a mux whose peer never answers an open.
pub(crate) fn silent(identity: Option<&str>) -> Rc<Memory> {
    let dialler = Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) });
    memory(identity, dialler)
}

impl Memory {
    /// The mux as a trait object.
    pub(crate) fn shared(self: &Rc<Self>) -> Rc<dyn Mux> {
        Rc::new(Rc::clone(self))
    }

    /// Simulates the shutdown of the peer.
    pub(crate) fn goes_away(&self) {
        self.progress.send_replace(Progress::GoingAway);
    }

    /// Sets the number of streams.
    pub(crate) fn has_streams(&self, streams: usize) {
        self.streams.send_replace(streams);
    }

    /// Sets the number of carriers that are up.
    pub(crate) fn carried_by(&self, up: usize) {
        self.numbers.send_modify(|numbers| numbers.up = up);
    }

    /// Sets the number of carriers that this side could use.
    pub(crate) fn wants_carriers(&self, sends: usize) {
        self.numbers.send_modify(|numbers| numbers.sends = sends);
    }

    /// Gives the mux carriers over `transports`, and permits it to take further carriers.
    pub(crate) fn takes_carriers(&self, transports: &[CarrierTransport]) {
        self.takes_carriers_up_to(usize::MAX, transports);
    }

    /// Works as [`Self::takes_carriers`]; the peer refuses carriers beyond `carriers_max`.
    pub(crate) fn takes_carriers_up_to(
        &self,
        carriers_max: usize,
        transports: &[CarrierTransport],
    ) {
        self.carriers_max.set(Some(carriers_max));
        for transport in transports {
            self.take(*transport, None);
        }
    }

    /// The transports of the carriers, oldest first.
    pub(crate) fn transports(&self) -> Vec<CarrierTransport> {
        let carriers = self.carriers.borrow();
        carriers.iter().map(|one| one.figures.transport).collect()
    }

    fn take(&self, transport: CarrierTransport, carrier: Option<Carrier>) {
        let figures = CarrierFigures {
            since: Instant::now(),
            transport,
            sent: 0,
            received: 0,
            path: None,
        };
        self.carriers.borrow_mut().push(Member {
            figures,
            outdated: false,
            _carrier: carrier,
        });
        self.count();
    }

    fn count(&self) {
        let carriers = self.carriers.borrow();
        self.numbers.send_modify(|numbers| {
            numbers.up = carriers.len();
            numbers.outdated = carriers.iter().filter(|one| one.outdated).count();
        });
    }

    /// Simulates that the peer sends `event`.
    pub(crate) fn says(&self, event: ListenEvent) {
        self.hears.get().unwrap()(event);
    }

    /// Simulates the peer's request for a listener on `address`; returns the answer.
    pub(crate) fn asks_to_listen(&self, address: &str) -> (ListenId, Result<String, String>) {
        self.listened.set(self.listened.get() + 1);
        let target = format!("listen://{}", self.listened.get());
        let listen = muxtunnel_proto::listen_of_target(&target).unwrap();
        self.says(ListenEvent::Asked {
            listen,
            address: address.to_owned(),
            priority: Priority::Auto,
        });
        self.told.borrow().last().unwrap().clone()
    }

    async fn carry(&self, target: String, connection: Connection, refused: Refused) {
        let dialled = tokio::select! {
            dialled = (self.dialler)(target, self.identity.clone(), connection.source) => dialled,
            () = self.reached(Progress::GoingAway) => {
                return refused(OpenEnd::Returned(connection));
            }
        };
        match dialled {
            Ok(dialled) => {
                let mut client = ByteStream(connection.socket);
                let mut target = ByteStream(dialled.socket);
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut target) => {}
                    () = self.ended() => {}
                }
            }
            Err(refusal) => refused(OpenEnd::Refused(refusal)),
        }
    }

    async fn reached(&self, wanted: Progress) {
        let mut progress = self.progress.subscribe();
        progress
            .wait_for(|progress| *progress >= wanted)
            .await
            .unwrap();
    }

    async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended).await.unwrap();
    }

    async fn without_streams(&self) {
        let mut streams = self.streams.subscribe();
        streams.wait_for(|streams| *streams == 0).await.unwrap();
    }
}

impl Mux for Rc<Memory> {
    fn open(
        &self,
        target: &str,
        _: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        if self.progress() != Progress::Ready || self.has_ended() {
            return Err(Box::new(NotOpened {
                error: OpenError::GoingAway,
                connection: client,
            }));
        }
        self.streams.send_modify(|streams| *streams += 1);
        let (mux, target) = (Self::clone(self), target.to_owned());
        tokio::task::spawn_local(async move {
            mux.carry(target, client, refused).await;
            mux.streams.send_modify(|streams| *streams -= 1);
        });
        Ok(())
    }

    fn run(&self) -> Local<'_, SessionEnd> {
        Box::pin(async move {
            self.ended().await;
            SessionEnd::ShutDown
        })
    }

    fn guard<'a>(&'a self, task: Local<'a, ()>) -> Local<'a, ()> {
        task
    }

    fn go_away(&self) {}

    fn leave(&self) {
        self.goes_away();
    }

    fn shut_down(&self) {
        self.ended.send_replace(true);
    }

    fn give_up(&self, _: String) {
        self.ended.send_replace(true);
    }

    fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    fn reached(&self, wanted: Progress) -> Local<'_, ()> {
        Box::pin(Memory::reached(self, wanted))
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    fn stream_count(&self) -> usize {
        *self.streams.borrow()
    }

    fn idle(&self) -> Local<'_, ()> {
        let mut ended = self.ended.subscribe();
        Box::pin(async move {
            tokio::select! {
                () = self.without_streams() => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        })
    }

    fn streams_gone(&self, within: Duration) -> Local<'_, ()> {
        Box::pin(async move {
            let _ = tokio::time::timeout(within, self.without_streams()).await;
        })
    }

    fn peer(&self) -> Rc<str> {
        "memory".into()
    }

    fn identity(&self) -> Option<Rc<str>> {
        self.identity.clone()
    }

    fn waits(&self) -> bool {
        self.numbers.borrow().up == 0
    }

    fn answers(&self) -> bool {
        self.numbers.borrow().up > 0 && self.answers.get()
    }

    fn ask(&self) {
        self.asked.set(self.asked.get() + 1);
    }

    fn owes_an_answer(&self) -> bool {
        self.owes.get()
    }

    fn verify_again(&self, standing: &dyn Fn(&Proof) -> Standing) {
        let proof = self
            .identity
            .as_ref()
            .map(|identity| Proof::of(identity.to_string()));
        if proof.is_some_and(|proof| standing(&proof) != Standing::Good) {
            self.ended.send_replace(true);
        }
    }

    fn cut_denied(&self, _: &dyn Fn(&str, &LocalAddress) -> bool) {}

    fn carriers(&self) -> Option<&dyn CarrierPool> {
        Some(self)
    }

    fn listeners(&self) -> Option<&dyn Listeners> {
        Some(self)
    }
}

impl CarrierPool for Rc<Memory> {
    fn add(
        &self,
        carrier: Carrier,
        _: Vec<u8>,
        _: Option<Place>,
    ) -> Result<Local<'static, bool>, NoCarrier> {
        let (transport, carriers_max) = match (&carrier, self.carriers_max.get()) {
            (Carrier::Bytes(bytes), Some(carriers_max)) => (bytes.runs_on(), carriers_max),
            _ => return Err(NoCarrier::Refused(carrier)),
        };
        let is_up = self.carriers.borrow().len() < carriers_max;
        if is_up {
            self.take(transport, Some(carrier));
        }
        Ok(Box::pin(std::future::ready(is_up)))
    }

    fn retire_one(&self) -> bool {
        let mut carriers = self.carriers.borrow_mut();
        let outdated = carriers.iter().position(|one| one.outdated);
        let Some(at) = outdated.or(carriers.len().checked_sub(1)) else {
            return false;
        };
        carriers.remove(at);
        drop(carriers);
        self.count();
        true
    }

    fn figures(&self) -> Vec<CarrierFigures> {
        let carriers = self.carriers.borrow();
        carriers.iter().map(|one| one.figures).collect()
    }

    fn outdate(&self, which: &dyn Fn(&CarrierFigures) -> bool) {
        for one in self.carriers.borrow_mut().iter_mut() {
            one.outdated |= which(&one.figures);
        }
        self.count();
    }

    fn resumes(&self) -> bool {
        true
    }

    fn numbers(&self) -> PoolState {
        *self.numbers.borrow()
    }

    fn until<'a>(&'a self, is: &'a dyn Fn(&PoolState) -> bool) -> Local<'a, ()> {
        Box::pin(async move {
            let mut numbers = self.numbers.subscribe();
            numbers.wait_for(is).await.unwrap();
        })
    }
}

impl Listeners for Rc<Memory> {
    fn hear(&self, hears: Hears) {
        assert!(
            self.hears.set(hears).is_ok(),
            "the mux already has a receiver of events"
        );
    }

    fn listen(&self, _: &str, _: Priority) -> Result<ListenId, ListenError> {
        Err(ListenError::Unsupported)
    }

    fn unlisten(&self, _: ListenId) {}

    fn listening(&self, listen: ListenId, address: &str) {
        let told = (listen, Ok(address.to_owned()));
        self.told.borrow_mut().push(told);
    }

    fn end_listen(&self, listen: ListenId, refusal: Refusal) {
        let told = (listen, Err(refusal.description));
        self.told.borrow_mut().push(told);
    }
}

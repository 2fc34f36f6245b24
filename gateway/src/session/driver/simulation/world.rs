//! The world of a run: it opens streams, dials carriers, injects faults, advances the clock, and
//! checks the results.
//!
//! The clock does not advance while anything can move. The clock advances by one tick after nothing
//! has moved for [`QUIET_ROUNDS`] rounds of the event loop. So a delayed action of the kernel costs
//! at most one tick.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_proto::{Priority, Reason, Refusal};
use tokio::runtime::LocalOptions;
use tokio::sync::{oneshot, watch};

use super::choice::Choices;
use super::profile::{Profile, SESSION_ID};
use super::record::{CLIENT, Open, Record, Shared, TARGET, address, payload};
use super::seen::Seen;
use super::stage::{Stage, Whose};
use super::{application, kernel, rest, wire};
use crate::base::forward::Admission;
use crate::base::memory_budget::MemoryBudget;
use crate::base::patience::Patience;
use crate::base::telemetry::Telemetry;
use crate::io::transport::Transport;
use crate::net::dial::Dialled;
use crate::session::driver::{Carrier, Driver};
use crate::session::hello;
use crate::session::mux::{CarrierPool, NoCarrier, OpenEnd, Progress, Refused};
use crate::session::mux::{Dial, Dialler};
use crate::stream::account::Local;
use crate::stream::buffers::Pool;
use crate::stream::early_data::Connection;

pub(super) const ENTRY: usize = 0;
pub(super) const EXIT: usize = 1;

/// Rounds of the event loop without any movement before the clock advances.
const QUIET_ROUNDS: usize = 8;
/// If the clock does not advance for this number of rounds, the run fails as a busy loop.
const ROUNDS_MAX: usize = 200_000;
/// The tick while there is activity. Without activity, the tick doubles up to [`World::idle_tick`].
const TICK: Duration = Duration::from_millis(1);
const IDLE_TICK: Duration = Duration::from_millis(50);
/// The longest tick if carriers are TCP sockets. The kernel's timers of such sockets use the real
/// clock.
const IDLE_TICK_KERNEL: Duration = Duration::from_millis(5);
/// Pause in real time before each longest tick of a run that uses kernel timers, so that these
/// timers can expire.
const KERNEL_PAUSE: Duration = Duration::from_micros(300);
/// Time within which everything must end after the faults; it exceeds every timeout of a session.
const END_MAX: Duration = Duration::from_secs(90);
/// Time after the end of the last stream within which the sessions must release everything that
/// they held for streams.
const REST_MAX: Duration = Duration::from_secs(10);
/// Maximum number of events for which a fault waits, not counting [`HELLO_ACTIVITY`].
const ACTIVITY_MAX: usize = 1000;
/// Number of events of a session's hello and of its first streams. Most faults wait for this number
/// of further events.
const HELLO_ACTIVITY: u64 = 40;
/// Pause before a retry of an open that found no room.
const OPEN_AGAIN: Duration = Duration::from_millis(5);

pub(super) struct Run {
    pub(super) native: bool,
    pub(super) seen: BTreeSet<Seen>,
    /// Hash of all steps.
    pub(super) hash: u64,
}

pub(super) fn run(seed: u64, printed: bool) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let stage = Stage::new(Profile::draw(seed), printed);
        World::new(&stage).play().await;
        Run {
            native: stage.profile.native,
            seen: stage.seen.take(),
            hash: stage.hash(),
        }
    })
}

#[derive(Debug, Clone, Copy)]
enum Mischief {
    CutOne,
    CutHalf,
    CutAll,
    Retire,
    GoAway,
    ShutDown(usize),
    GiveUp,
}

impl Mischief {
    const fn is_cut(self) -> bool {
        matches!(self, Self::CutOne | Self::CutHalf | Self::CutAll)
    }
}

enum Cable {
    Wire(wire::Cable),
    Kernel(kernel::Cable),
}

impl Cable {
    /// Whether bytes may be in flight.
    fn is_busy(&self) -> bool {
        match self {
            Self::Wire(cable) => cable.is_whole() && cable.is_busy(),
            Self::Kernel(cable) => cable.is_whole(),
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            Self::Wire(cable) => cable.is_whole(),
            Self::Kernel(cable) => cable.is_whole(),
        }
    }
}

struct World {
    stage: Rc<Stage>,
    pools: [Rc<Pool>; 2],
    drivers: [Rc<Driver>; 2],
    records: Rc<RefCell<Vec<Shared>>>,
    cables: RefCell<Vec<Cable>>,
    choices: RefCell<Choices>,
    carriers: Cell<u64>,
    /// The sides on which a session runs.
    runs: [Cell<bool>; 2],
    /// Why the streams that were open when this field was set may end uncleanly.
    excuse: Cell<Option<&'static str>>,
    /// Whether the session may continue after a cut of its carrier.
    may_go_on: Cell<bool>,
    goes_away: Cell<bool>,
    /// The faults that wait for a number of events, with this number. Other faults wait for a time.
    plan: RefCell<Vec<(u64, Mischief)>>,
    /// Whether the world injects no more faults.
    stopped: Cell<bool>,
}

impl World {
    fn new(stage: &Rc<Stage>) -> Rc<Self> {
        let records = (0..stage.profile.streams)
            .map(|label| Rc::new(RefCell::new(Record::draw(stage, label))))
            .collect();
        let records = Rc::new(RefCell::new(records));
        let pools = [(); 2].map(|()| Pool::for_one_of(1));
        let drivers = [ENTRY, EXIT].map(|side| {
            let config = stage.profile.config(side);
            let dialler = match side {
                ENTRY => no_dialler(stage),
                _ => dialler(stage, &records),
            };
            Driver::new(
                stage.profile.session(side),
                Rc::clone(&pools[side]),
                (
                    config.session(),
                    watch::channel(Arc::new(config.reloadable())).1,
                    MemoryBudget::of(None).draw(config.memory, 1).1,
                ),
                Telemetry::new(&config, "", 1, None),
                dialler,
            )
        });
        Rc::new(Self {
            stage: Rc::clone(stage),
            pools,
            drivers,
            records,
            cables: RefCell::default(),
            choices: RefCell::new(stage.choices(Whose::World, 0)),
            carriers: Cell::new(0),
            runs: [Cell::new(false), Cell::new(false)],
            excuse: Cell::new(None),
            may_go_on: Cell::new(false),
            goes_away: Cell::new(false),
            plan: RefCell::default(),
            stopped: Cell::new(false),
        })
    }

    async fn play(self: Rc<Self>) {
        let _ = self.add_carrier();
        self.clone().start(ENTRY);
        for label in 0..self.stage.profile.streams {
            tokio::task::spawn_local(self.clone().open(label));
        }
        if self.stage.profile.resume {
            tokio::task::spawn_local(self.clone().keep_carriers());
        }
        self.plan_mischief();
        let fair_after = self.stage.profile.fair_after;
        let is_over = || {
            self.records
                .borrow()
                .iter()
                .all(|record| record.borrow().is_over())
        };
        self.until(fair_after + END_MAX, "no end", is_over, || self.stuck())
            .await;
        self.stopped.set(true);
        self.stage.fair.set(true);
        if self.excuse.get().is_none() {
            let left = || {
                let sides = [ENTRY, EXIT]
                    .map(|side| rest::left_over(&self.drivers[side], &self.pools[side]));
                sides
                    .iter()
                    .any(Option::is_some)
                    .then(|| format!("{sides:?}"))
            };
            let until = self.stage.elapsed() + REST_MAX;
            let describe = || left().unwrap_or_default();
            self.until(until, "left over", || left().is_none(), describe)
                .await;
            self.excuse.set(Some("the run is over"));
            self.may_go_on.set(true);
        }
        if self.may_go_on.get() {
            self.drivers[ENTRY].shut_down();
        }
        self.end().await;
        self.judge();
    }

    /// Ends both sessions, and checks that nothing of them remains.
    async fn end(self: &Rc<Self>) {
        let until = self.stage.elapsed() + END_MAX;
        let is_over = || self.runs.iter().all(|runs| !runs.get());
        let describe = || format!("{:?}", self.runs);
        self.until(until, "a session does not end", is_over, describe)
            .await;
        let remains = || {
            let sides =
                [ENTRY, EXIT].map(|side| rest::remains(&self.drivers[side], &self.pools[side]));
            sides
                .iter()
                .any(Option::is_some)
                .then(|| format!("{sides:?}"))
        };
        let until = self.stage.elapsed() + REST_MAX + END_MAX;
        let describe = || remains().unwrap_or_default();
        self.until(
            until,
            "of an ended session remain",
            || remains().is_none(),
            describe,
        )
        .await;
    }

    fn judge(&self) {
        for record in &*self.records.borrow() {
            let mut record = record.borrow_mut();
            if let Err(error) = record.judge(&self.stage) {
                panic!("stream {}: {error}: {record:?}", record.label);
            }
        }
        for driver in &self.drivers {
            assert_eq!(driver.telemetry.session_panics(), 0, "a panic was caught");
        }
    }

    /// Advances the clock until `is_over` returns true. Fails if this has not happened at the time
    /// `until`.
    async fn until(
        &self,
        until: Duration,
        what: &str,
        is_over: impl Fn() -> bool,
        describe: impl Fn() -> String,
    ) {
        let mut tick = TICK;
        loop {
            let active = self.settle().await;
            self.stage.check();
            if is_over() {
                return;
            }
            let now = self.stage.elapsed();
            assert!(now < until, "{what} at {now:?}: {}", describe());
            if now >= self.stage.profile.fair_after && !self.stage.fair.replace(true) {
                self.stage.say("it is fair from now on");
            }
            tick = if active {
                TICK
            } else {
                (tick * 2).min(self.idle_tick())
            };
            if tick == self.idle_tick() && !self.stage.profile.is_exact() {
                std::thread::sleep(KERNEL_PAUSE);
            }
            tokio::time::sleep(tick).await;
        }
    }

    fn idle_tick(&self) -> Duration {
        if self.stage.profile.kernel {
            IDLE_TICK_KERNEL
        } else {
            IDLE_TICK
        }
    }

    /// Runs all tasks that can proceed without the clock. Returns whether there was any activity.
    async fn settle(&self) -> bool {
        let (begun, mut quiet, mut rounds) = (self.stage.activity(), 0, 0);
        while quiet < QUIET_ROUNDS {
            let before = self.stage.activity();
            tokio::task::yield_now().await;
            quiet = if self.stage.activity() == before {
                quiet + 1
            } else {
                0
            };
            rounds += 1;
            self.make_due();
            assert!(rounds < ROUNDS_MAX, "it spins: {}", self.stuck());
            for driver in &self.drivers {
                rest::check(&self.stage, driver);
            }
        }
        self.stage.activity() != begun
    }

    fn stuck(&self) -> String {
        let records = self.records.borrow();
        let open: Vec<_> = records
            .iter()
            .filter(|record| !record.borrow().is_over())
            .collect();
        let left =
            [ENTRY, EXIT].map(|side| rest::left_over(&self.drivers[side], &self.pools[side]));
        format!("{left:?}, streams {open:?}")
    }

    /// Permits all streams that are still open to end uncleanly.
    fn excuse(&self, excuse: &'static str) {
        if self.excuse.get().is_some() {
            return;
        }
        self.stage.say(excuse);
        self.excuse.set(Some(excuse));
        let records = self.records.borrow();
        let open = records.iter().filter(|record| !record.borrow().is_over());
        open.for_each(|record| record.borrow_mut().excuse(excuse));
    }

    /// Runs the session of one side.
    fn start(self: Rc<Self>, side: usize) {
        self.runs[side].set(true);
        tokio::task::spawn_local(async move {
            let end = self.drivers[side].run().await;
            self.stage
                .say(&format!("the session of side {side} has ended: {end}"));
            if self.excuse.get().is_none() {
                self.stage
                    .fail(format!("the session of side {side} ended: {end}"));
            }
            self.drivers[side].streams_gone().await;
            self.runs[side].set(false);
            self.stage.moved();
        });
    }

    /// Adds a carrier to the session; `None`: the session accepts no carrier now.
    fn add_carrier(self: &Rc<Self>) -> Option<Rc<Carrier>> {
        let number = self.carriers.replace(self.carriers.get() + 1);
        let (near, far, cable) = if self.stage.profile.kernel {
            let (near, far, cable) = kernel::carrier(&self.stage, number);
            (near, far, Cable::Kernel(cable))
        } else {
            let (near, far, cable) = wire::carrier(&self.stage, number);
            (near, far, Cable::Wire(cable))
        };
        match self.drivers[ENTRY].add_carrier(near, Vec::new(), None) {
            Ok(carrier) => {
                self.stage.say(&format!("carrier {number} is dialled"));
                self.cables.borrow_mut().push(cable);
                tokio::task::spawn_local(self.clone().arrive(far));
                Some(carrier)
            }
            Err(NoCarrier::Refused(_) | NoCarrier::Io(_)) => None,
            Err(NoCarrier::Stranger(_)) => {
                self.stage.fail("a carrier is a stranger's".to_owned());
                None
            }
        }
    }

    /// Processes a carrier that reaches the exit.
    async fn arrive(self: Rc<Self>, far: Box<dyn Transport>) {
        let mut unread = Vec::new();
        if self.stage.profile.native {
            let patience = Patience::fixed(hello::HELLO_MAX);
            let Ok(greeting) =
                hello::read(&*far, muxtunnel_gateway_config::Protocol::Native, &patience).await
            else {
                return;
            };
            if greeting.joins.is_some_and(|id| id != SESSION_ID) {
                self.stage
                    .fail("a carrier joins another session".to_owned());
            }
            unread = greeting.unread;
        }
        let exit = &self.drivers[EXIT];
        let begins = !exit.carriers.has_begun();
        if exit.add_carrier(far, unread, None).is_ok() && begins {
            self.start(EXIT);
        }
    }

    async fn keep_carriers(self: Rc<Self>) {
        let entry = &self.drivers[ENTRY];
        let mut choices = self.stage.choices(Whose::Keeper, 0);
        entry.reached(Progress::Ready).await;
        loop {
            let pool: &dyn CarrierPool = entry;
            pool.lacks(self.stage.profile.carriers).await;
            if entry.has_ended() {
                return;
            }
            let pause = choices.of(&[0, 1, 30, 300]);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            match self.add_carrier() {
                Some(carrier) => {
                    carrier.settled().await;
                }
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Opens a stream; tries again while there is no room for it.
    async fn open(self: Rc<Self>, label: usize) {
        let record = Rc::clone(&self.records.borrow()[label]);
        let after = record.borrow().opens_after;
        tokio::time::sleep(after).await;
        let mut connection = self.connect(&record);
        loop {
            if let Some(excuse) = self.excuse.get() {
                record.borrow_mut().excuse(excuse);
            }
            let refused = self.refused(&record);
            let entry = &self.drivers[ENTRY];
            match entry.open(&Record::url(label), Priority::Auto, connection, refused) {
                Ok(()) => return self.stage.moved(),
                Err(not_opened) => connection = not_opened.connection,
            }
            if entry.has_ended() {
                record.borrow_mut().open = Open::TurnedAway;
                return connection.turn_away();
            }
            if self.goes_away.get() && entry.progress() == Progress::GoingAway {
                record.borrow_mut().open = Open::Returned;
                return self.elsewhere(&record, connection);
            }
            tokio::time::sleep(OPEN_AGAIN).await;
        }
    }

    fn connect(&self, record: &Shared) -> Connection {
        let mut borrowed = record.borrow_mut();
        let (label, early) = (borrowed.label, borrowed.early);
        let mut choices = self.stage.choices(Whose::Stream, NEAR + label as u64);
        let (near, far) = self.stage.local_pair(&mut choices);
        let (ended, closed) = oneshot::channel();
        borrowed.closed = Some(closed);
        borrowed.halves[CLIENT].sent = early as u64;
        let connection = Connection {
            socket: near,
            local: Local::of_client(&Record::url(label), RefCell::new(Some(ended))),
            early: payload(label, CLIENT, 0, early).to_vec(),
            answer: borrowed.answer,
            source: None,
            has_next: false,
        };
        drop(borrowed);
        let (stage, record) = (Rc::clone(&self.stage), Rc::clone(record));
        tokio::task::spawn_local(application::run(stage, record, CLIENT, far, Vec::new()));
        connection
    }

    /// Returns the callback for a failed open.
    fn refused(self: &Rc<Self>, record: &Shared) -> Refused {
        let (world, record) = (Rc::clone(self), Rc::clone(record));
        Box::new(move |end| {
            let stage = &world.stage;
            stage.moved();
            if let Err(error) = record.borrow_mut().ended(&end) {
                stage.fail(error);
            }
            match end {
                OpenEnd::Returned(connection) => {
                    stage.see(Seen::OpenReturned);
                    if !connection.early.is_empty() {
                        stage.see(Seen::OpenReturnedWithBytes);
                    }
                    world.elsewhere(&record, connection);
                }
                // An exit that goes away may cause a refusal if the session does not resume. Such a
                // session does not retain the sent bytes that another exit would need, and JMUX
                // cannot announce its shutdown.
                OpenEnd::Refused(_) if world.goes_away.get() && !stage.profile.resume => {
                    record.borrow_mut().excuse("the exit goes away");
                }
                OpenEnd::Refused(_) | OpenEnd::Abandoned | OpenEnd::Failed(..) => {}
            }
        })
    }

    /// Simulates another exit, close to the target, that takes the stream.
    fn elsewhere(&self, record: &Shared, connection: Connection) {
        let mut borrowed = record.borrow_mut();
        let label = borrowed.label;
        self.stage.say(&format!("stream {label}: goes elsewhere"));
        if borrowed.dials > 0 {
            self.stage.fail(format!(
                "stream {label}: the peer returned the open after it had dialled the target"
            ));
            return;
        }
        if let Err(error) = borrowed.receive(TARGET, &connection.early) {
            self.stage.fail(error);
        }
        let answer = borrowed.grant.clone();
        borrowed.halves[TARGET].started = true;
        drop(borrowed);
        let (stage, record) = (Rc::clone(&self.stage), Rc::clone(record));
        let target = application::run(stage, record, TARGET, connection.socket, answer);
        tokio::task::spawn_local(target);
    }

    fn plan_mischief(self: &Rc<Self>) {
        let profile = &self.stage.profile;
        let mut plan = Vec::new();
        let mut choices = self.choices.borrow_mut();
        for _ in 0..profile.cuts {
            plan.push(choices.of(&[Mischief::CutOne, Mischief::CutHalf, Mischief::CutAll]));
        }
        if profile.retires {
            plan.extend([Mischief::Retire; 2]);
        }
        if profile.go_away {
            plan.push(Mischief::GoAway);
        }
        plan.extend(profile.shut_down.map(Mischief::ShutDown));
        if profile.give_up {
            plan.push(Mischief::GiveUp);
        }
        for mischief in plan {
            if choices.one_in(2) {
                let after = choices.length(ACTIVITY_MAX) as u64;
                let in_hello = choices.one_in(8);
                let after = after + if in_hello { 0 } else { HELLO_ACTIVITY };
                self.plan.borrow_mut().push((after, mischief));
                continue;
            }
            let most = profile.fair_after.as_millis() as usize;
            let after = Duration::from_millis(choices.length(most) as u64);
            let world = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(after).await;
                if !world.stopped.get() {
                    world.make(mischief);
                }
            });
        }
    }

    fn is_busy(&self) -> bool {
        self.cables.borrow().iter().any(Cable::is_busy)
    }

    fn make_due(&self) {
        let activity = self.stage.activity();
        if self.stopped.get() {
            return;
        }
        loop {
            let mut plan = self.plan.borrow_mut();
            // A cut waits until bytes are in flight.
            let is_due = |(after, mischief): &(u64, Mischief)| {
                *after <= activity && (self.is_busy() || !mischief.is_cut())
            };
            let Some(due) = plan.iter().position(is_due) else {
                return;
            };
            let (_, mischief) = plan.swap_remove(due);
            drop(plan);
            self.make(mischief);
        }
    }

    fn make(&self, mischief: Mischief) {
        let [entry, exit] = &self.drivers;
        self.stage.say(&format!("{mischief:?}"));
        self.stage.moved();
        match mischief {
            Mischief::CutOne | Mischief::CutHalf | Mischief::CutAll => self.cut(mischief),
            Mischief::Retire => {
                entry.retire_one();
            }
            Mischief::GoAway => {
                self.goes_away.set(true);
                exit.go_away();
            }
            Mischief::ShutDown(side) => {
                self.stage.see(Seen::ShutDown);
                self.excuse("the session is shut down");
                // A side without a carrier has no session yet.
                if self.runs[side].get() {
                    self.drivers[side].shut_down();
                } else {
                    entry.shut_down();
                }
            }
            Mischief::GiveUp => {
                self.stage.see(Seen::GivenUp);
                self.excuse("the session is given up");
                entry.give_up("drawn".to_owned());
            }
        }
    }

    fn cut(&self, mischief: Mischief) {
        let mut choices = self.choices.borrow_mut();
        let mut cables = self.cables.borrow_mut();
        cables.retain(Cable::is_whole);
        if cables.is_empty() {
            return;
        }
        let is_new = self
            .drivers
            .iter()
            .any(|driver| driver.progress() == Progress::Hello);
        // The gateways alone decide whether a new session outlives its carrier, so the world
        // permits both.
        let may_go_on = is_new && self.stage.profile.resume;
        self.may_go_on.set(self.may_go_on.get() || may_go_on);
        if is_new || !self.stage.profile.resume {
            if self
                .records
                .borrow()
                .iter()
                .any(|record| !record.borrow().is_over())
            {
                self.stage.see(Seen::SessionLost);
            }
            self.excuse("the session's carrier is cut");
        }
        let chosen = choices.below(cables.len());
        for (index, cable) in cables.iter().enumerate() {
            if index != chosen && !matches!(mischief, Mischief::CutAll) {
                continue;
            }
            let side = choices.below(2);
            match (cable, mischief) {
                (Cable::Kernel(cable), _) => cable.cut(&self.stage, side),
                (Cable::Wire(cable), Mischief::CutHalf) => cable.cut_half(&self.stage, side),
                (Cable::Wire(cable), _) => cable.cut(),
            }
        }
    }
}

/// The choices about a stream's client connection have the number ([`Whose::Stream`]) `NEAR` plus
/// the stream's label. The choices about its target connection have the number `FAR` plus the
/// label.
const NEAR: u64 = 1 << 10;
const FAR: u64 = 2 << 10;

fn no_dialler(stage: &Rc<Stage>) -> Dialler {
    let stage = Rc::clone(stage);
    Box::new(move |target: String, _, _| -> Dial {
        stage.fail(format!("the entry dials {target}"));
        Box::pin(std::future::pending())
    })
}

struct Dialling(Shared);

impl Drop for Dialling {
    fn drop(&mut self) {
        self.0.borrow_mut().dialling -= 1;
    }
}

fn dialler(stage: &Rc<Stage>, records: &Rc<RefCell<Vec<Shared>>>) -> Dialler {
    let (stage, records) = (Rc::clone(stage), Rc::clone(records));
    Box::new(move |target: String, _, _| -> Dial {
        let (stage, label) = (Rc::clone(&stage), Record::label_of(&target));
        let record = label.and_then(|label| records.borrow().get(label).cloned());
        let Some(record) = record else {
            stage.fail(format!("{target} is dialled without an open"));
            return Box::pin(std::future::pending());
        };
        let mut borrowed = record.borrow_mut();
        borrowed.dials += 1;
        borrowed.dialling += 1;
        if borrowed.dials > 1 {
            stage.fail(format!("{target} is dialled a second time"));
        }
        let (takes, refused) = (borrowed.dial_takes, borrowed.refused);
        drop(borrowed);
        let dialling = Dialling(Rc::clone(&record));
        Box::pin(async move {
            let _dialling = dialling;
            tokio::time::sleep(takes).await;
            stage.moved();
            if refused {
                return Err(Refusal::new(Reason::General, "drawn"));
            }
            let label = record.borrow().label;
            let mut choices = stage.choices(Whose::Stream, FAR + label as u64);
            let (near, far) = stage.local_pair(&mut choices);
            record.borrow_mut().halves[TARGET].started = true;
            tokio::task::spawn_local(application::run(stage, record, TARGET, far, Vec::new()));
            Ok(Dialled {
                socket: near,
                address: address(label)
                    .parse::<std::net::SocketAddr>()
                    .unwrap()
                    .into(),
                admission: Admission::default(),
                url: None,
            })
        })
    })
}

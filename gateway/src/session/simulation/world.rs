//! The world of a run: it opens streams, dials carriers, injects faults, advances the clock, and
//! checks the results.
//!
//! The clock does not advance while anything can move. The clock advances by one tick after nothing
//! has moved for [`QUIET_ROUNDS`] rounds of the event loop. So a delayed action of the kernel costs
//! at most one tick.

mod mischief;
mod streams;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::watch;

use super::choice::Choices;
use super::profile::{Family, Kind, Profile, SESSION_ID};
use super::record::{Record, Shared};
use super::rest::{self, Side};
use super::seen::Seen;
use super::stage::{Stage, Whose};
use super::{kernel, wire};
use crate::base::memory_budget::MemoryBudget;
use crate::base::patience::Patience;
use crate::base::telemetry::Telemetry;
use crate::io::transport::{Side as End, Transport};
use crate::session::bridge::Bridge;
use crate::session::context::Context;
use crate::session::driver::Driver;
use crate::session::hello;
use crate::session::http2::Http2;
use crate::session::mux::{CarrierPool, Local, NoCarrier, Progress};
use crate::stream::buffers::Pool;
use mischief::Mischief;
use streams::{dialler, no_dialler};

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

pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) seen: BTreeSet<Seen>,
    /// Hash of all steps.
    pub(super) hash: u64,
}

pub(super) fn run(family: Family, seed: u64, printed: bool) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .unwrap();
    runtime.block_on(async {
        let stage = Stage::new(Profile::draw(family, seed), printed);
        World::new(&stage).play().await;
        Run {
            kind: stage.profile.kind,
            seen: stage.seen.take(),
            hash: stage.hash(),
        }
    })
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
    sides: [Box<dyn Side>; 2],
    records: Rc<RefCell<Vec<Shared>>>,
    cables: RefCell<Vec<Cable>>,
    choices: RefCell<Choices>,
    carriers: Cell<u64>,
    /// The sides on which a session runs.
    runs: [Cell<bool>; 2],
    /// Whether the exit has had a carrier.
    has_arrived: Cell<bool>,
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
        let pools = [(); 2].map(|()| Rc::<Pool>::default());
        let sides = [ENTRY, EXIT].map(|side| -> Box<dyn Side> {
            let config = stage.profile.config(side);
            let dialler = match side {
                ENTRY => no_dialler(stage),
                _ => dialler(stage, &records),
            };
            let mut context = Context {
                config: config.session(),
                reloadable: watch::channel(Arc::new(config.reloadable())).1,
                telemetry: Telemetry::new(&config, "", 1, None),
                buffers: Rc::clone(&pools[side]),
                memory: (MemoryBudget::of(None), 1),
            };
            if stage.profile.kind != Kind::Http2 {
                let session = stage.profile.session(side);
                return Box::new(Driver::new(session, context.granted(), dialler));
            }
            context.config.memory.receive.0 = stage.profile.budgets[side];
            let end = if side == ENTRY {
                End::Dials
            } else {
                End::Accepts
            };
            let make = Box::new(move |below, config: &_| Http2::new(end, below, config));
            Box::new(Bridge::new(make, context, dialler))
        });
        Rc::new(Self {
            stage: Rc::clone(stage),
            pools,
            sides,
            records,
            cables: RefCell::default(),
            choices: RefCell::new(stage.choices(Whose::World, 0)),
            carriers: Cell::new(0),
            runs: [Cell::new(false), Cell::new(false)],
            has_arrived: Cell::new(false),
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
                    .map(|side| rest::left_over(&*self.sides[side], &self.pools[side]));
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
            self.sides[ENTRY].shut_down();
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
                [ENTRY, EXIT].map(|side| rest::remains(&*self.sides[side], &self.pools[side]));
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
        for side in &self.sides {
            let panics = side.telemetry().session_panics.get();
            assert_eq!(panics, 0, "a panic was caught");
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
            for side in &self.sides {
                side.check(&|seen| self.stage.see(seen));
                if side.telemetry().credit.status().waits > 0 {
                    self.stage.see(Seen::CreditExhausted);
                }
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
        let left = [ENTRY, EXIT].map(|side| rest::left_over(&*self.sides[side], &self.pools[side]));
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
            let end = self.sides[side].run().await;
            self.stage
                .say(&format!("the session of side {side} has ended: {end}"));
            // A connection of HTTP/2 ends with its last stream after a GOAWAY.
            let may_end = self.goes_away.get() && self.stage.profile.kind == Kind::Http2;
            if self.excuse.get().is_none() && !may_end {
                self.stage
                    .fail(format!("the session of side {side} ended: {end}"));
            }
            self.sides[side].streams_gone(Duration::from_secs(3)).await;
            self.runs[side].set(false);
            self.stage.moved();
        });
    }

    /// Adds a carrier to the session; `None`: the session accepts no carrier now.
    fn add_carrier(self: &Rc<Self>) -> Option<Local<'static, bool>> {
        let number = self.carriers.replace(self.carriers.get() + 1);
        let (near, far, cable) = if self.stage.profile.kernel {
            let (near, far, cable) = kernel::carrier(&self.stage, number);
            (near, far, Cable::Kernel(cable))
        } else {
            let (near, far, cable) = wire::carrier(&self.stage, number);
            (near, far, Cable::Wire(cable))
        };
        match self.pool(ENTRY).add(near.into(), Vec::new(), None) {
            Ok(settled) => {
                self.stage.say(&format!("carrier {number} is dialled"));
                self.cables.borrow_mut().push(cable);
                tokio::task::spawn_local(self.clone().arrive(far));
                Some(settled)
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
        if self.stage.profile.kind == Kind::Native {
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
        let is_added = self.pool(EXIT).add(far.into(), unread, None).is_ok();
        if is_added && !self.has_arrived.replace(true) {
            self.start(EXIT);
        }
    }

    fn pool(&self, side: usize) -> &dyn CarrierPool {
        self.sides[side].carriers().unwrap()
    }

    async fn keep_carriers(self: Rc<Self>) {
        let entry = &self.sides[ENTRY];
        let mut choices = self.stage.choices(Whose::Keeper, 0);
        entry.reached(Progress::Ready).await;
        loop {
            self.pool(ENTRY).lacks(self.stage.profile.carriers).await;
            if entry.has_ended() {
                return;
            }
            let pause = choices.of(&[0, 1, 30, 300]);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            match self.add_carrier() {
                Some(settled) => {
                    settled.await;
                }
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

//! The streams that a world opens, and the targets that its exit dials.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::{Priority, Reason, Refusal};
use tokio::sync::oneshot;

use super::{ENTRY, World};
use crate::base::forward::Admission;
use crate::net::dial::Dialled;
use crate::session::mux::{Dial, Dialler, OpenEnd, Progress, Refused};
use crate::session::simulation::application;
use crate::session::simulation::record::{CLIENT, Open, Record, Shared, TARGET, address, payload};
use crate::session::simulation::seen::Seen;
use crate::session::simulation::stage::{Stage, Whose};
use crate::stream::account::Local;
use crate::stream::early_data::Connection;

/// Pause before a retry of an open that found no room.
const OPEN_AGAIN: Duration = Duration::from_millis(5);

/// The choices about a stream's client connection have the number ([`Whose::Stream`]) `NEAR` plus
/// the stream's label. The choices about its target connection have the number `FAR` plus the
/// label.
const NEAR: u64 = 1 << 10;
const FAR: u64 = 2 << 10;

impl World {
    /// Opens a stream; tries again while there is no room for it.
    pub(super) async fn open(self: Rc<Self>, label: usize) {
        let record = Rc::clone(&self.records.borrow()[label]);
        let after = record.borrow().opens_after;
        tokio::time::sleep(after).await;
        let mut connection = self.connect(&record);
        loop {
            if let Some(excuse) = self.excuse.get() {
                record.borrow_mut().excuse(excuse);
            }
            let refused = self.refused(&record);
            let entry = &self.sides[ENTRY];
            match entry.open(&Record::url(label), Priority::Auto, connection, refused) {
                Ok(()) => return self.stage.moved(),
                Err(not_opened) => connection = not_opened.connection,
            }
            if entry.has_ended() && !self.goes_away.get() {
                record.borrow_mut().open = Open::TurnedAway;
                return connection.turn_away();
            }
            let takes_none = entry.has_ended() || entry.progress() == Progress::GoingAway;
            if self.goes_away.get() && takes_none {
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
}

pub(super) fn no_dialler(stage: &Rc<Stage>) -> Dialler {
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

pub(super) fn dialler(stage: &Rc<Stage>, records: &Rc<RefCell<Vec<Shared>>>) -> Dialler {
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

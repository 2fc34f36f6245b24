//! The application at a local socket: it sends and reads at a random pace, and ends or resets its
//! connection.

use std::io::{ErrorKind, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use super::choice::Choices;
use super::record::{CLIENT, End, Half, PIECE_BYTES_MAX, Shared, payload};
use super::seen::Seen;
use super::stage::{Stage, Whose};
use crate::io::duplex;
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;

/// The longest usual pause.
const PAUSE_MILLISECONDS: usize = 10;
/// The length of a pause that simulates a stall.
const STALL: Duration = Duration::from_millis(150);

struct Application {
    stage: Rc<Stage>,
    record: Shared,
    label: usize,
    side: usize,
    socket: Box<dyn LocalEnd>,
    /// Total number of bytes sent and read after which the application resets its connection;
    /// `None`: it does not reset the connection.
    aborts: Option<u64>,
    abort: Notify,
}

/// Runs application `side` of a stream to its end. The application sends the bytes of `answer`
/// before any payload.
pub(super) async fn run(
    stage: Rc<Stage>,
    record: Shared,
    side: usize,
    socket: Box<dyn LocalEnd>,
    answer: Vec<u8>,
) {
    let (label, aborts) = {
        let mut record = record.borrow_mut();
        let label = record.label;
        let half = &mut record.halves[side];
        half.is_tcp = matches!(socket.plain(), Some(LocalSocket::Tcp(_)));
        half.started = true;
        // A Unix socket has no reset that the peer could distinguish from an end.
        (label, half.aborts.filter(|_| half.is_tcp))
    };
    let application = Application {
        stage,
        record,
        label,
        side,
        socket,
        aborts,
        abort: Notify::new(),
    };
    application.check();
    let both = async { tokio::join!(application.send(&answer), application.receive()) };
    tokio::select! {
        biased;
        () = application.abort.notified() => {
            application.say("resets its connection");
            let mut record = application.record.borrow_mut();
            record.halves[side].aborted = true;
            record.excuse("an application reset its connection");
        }
        ((), ()) = both => {
            if application.half(|half| half.finished && half.end == Some(End::Clean)) {
                application.socket.end_in_order();
            }
        }
    }
    let Application {
        stage,
        record,
        socket,
        ..
    } = application;
    drop(socket);
    stage.moved();
    record.borrow_mut().halves[side].gone = true;
}

impl Application {
    fn half<T>(&self, of: impl FnOnce(&mut Half) -> T) -> T {
        of(&mut self.record.borrow_mut().halves[self.side])
    }

    fn check(&self) {
        let moved = self.half(|half| half.sent + half.received);
        if self.aborts.is_some_and(|limit| moved >= limit) {
            self.abort.notify_one();
        }
    }

    fn say(&self, what: &str) {
        let who = if self.side == CLIENT {
            "client"
        } else {
            "target"
        };
        self.stage
            .say(&format!("stream {}: {who} {what}", self.label));
    }

    fn choices(&self, whose: Whose) -> Choices {
        self.stage
            .choices(whose, 2 * self.label as u64 + self.side as u64)
    }

    async fn pause(&self, choices: &mut Choices) {
        if !self.stage.profile.pauses || self.stage.fair.get() || !choices.one_in(4) {
            return;
        }
        let pause = match choices.one_in(8) {
            true => STALL,
            false => Duration::from_millis(choices.below(PAUSE_MILLISECONDS + 1) as u64),
        };
        tokio::time::sleep(pause).await;
    }

    async fn send(&self, answer: &[u8]) {
        let mut choices = self.choices(Whose::Sender);
        if !answer.is_empty() && !self.socket.send_at_once(answer) {
            return self.half(|half| half.write_failed = true);
        }
        loop {
            let (sent, plan) = self.half(|half| (half.sent, half.plan));
            if sent == plan {
                break;
            }
            self.pause(&mut choices).await;
            if duplex::writable(&*self.socket).await.is_err() {
                return self.half(|half| half.write_failed = true);
            }
            let length = choices.length(PIECE_BYTES_MAX) as u64;
            let length = length.min(plan - sent) as usize;
            let bytes = payload(self.label, self.side, sent, length);
            match self.socket.try_write(&[IoSlice::new(bytes)]) {
                Ok(length) => {
                    self.half(|half| half.sent += length as u64);
                    self.check();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => {
                    self.say("cannot write");
                    return self.half(|half| half.write_failed = true);
                }
            }
            self.stage.moved();
        }
        self.pause(&mut choices).await;
        if self.socket.finish().is_err() {
            return self.half(|half| half.write_failed = true);
        }
        self.say("has sent all");
        if self.half(|half| half.end.is_some()) {
            self.stage.see(Seen::HalfClose);
        }
        self.half(|half| half.finished = true);
        self.stage.moved();
    }

    async fn receive(&self) {
        let mut choices = self.choices(Whose::Reader);
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        let end = loop {
            self.pause(&mut choices).await;
            if duplex::readable(&*self.socket).await.is_err() {
                break End::Failed;
            }
            let most = choices.length(buffer.len());
            match self.socket.try_read(&mut buffer[..most]) {
                // A write has already failed with the reset, so this read returns an end of file
                // instead.
                Ok(0) if self.half(|half| half.write_failed) => break End::Failed,
                Ok(0) => break End::Clean,
                Ok(length) => {
                    let received = self
                        .record
                        .borrow_mut()
                        .receive(self.side, &buffer[..length]);
                    if let Err(error) = received {
                        self.stage.fail(error);
                    }
                    self.check();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => break End::Failed,
            }
            self.stage.moved();
        };
        self.say(&format!("has read to its end: {end:?}"));
        self.half(|half| half.end = Some(end));
        self.stage.moved();
    }
}

//! A request of the peer.

use std::rc::Rc;
use std::time::Duration;

use http::{Response, StatusCode};
use muxtunnel_proto::{Outcome, Refusal, patience};
use quinn::VarInt;

use super::frame::{self, Cut, Frame, Frames};
use super::message::{self, Asks, Malformed};
use super::qpack::{self, Unreadable};
use super::{Receiving, Sending, Shared, UNREADABLE, code};
use crate::session::bridge::link::{Ask, Sender};
use crate::session::connect::answer;
use crate::session::quic_streams::Broken;

/// Maximum time to read the fields of a request, counted from the first byte, on ordinary
/// paths.
const FIELDS_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum time that a refusal waits for credit.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// A CONNECT that waits for its answer.
pub(crate) struct Asked {
    target: String,
    sender: Sending,
    receiver: Receiving,
    shared: Rc<Shared>,
}

/// Why no open follows from a request.
enum NotAsked {
    /// The peer cancelled the request.
    Cancelled,
    /// The request gets this status. The code tells the peer that the rest of the request is not
    /// read.
    Answered(StatusCode, VarInt),
    Incomplete,
    Broken(Broken),
}

impl From<Cut> for NotAsked {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Peer(_) | Cut::Connection(_) => Self::Cancelled,
            Cut::TooLong => TOO_LARGE,
            Cut::Broken(broken) => Self::Broken(broken),
        }
    }
}

impl From<Unreadable> for NotAsked {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::TooLarge => TOO_LARGE,
            Unreadable::Malformed => Self::Broken(UNREADABLE),
        }
    }
}

impl From<Malformed> for NotAsked {
    fn from(_: Malformed) -> Self {
        Self::Answered(StatusCode::BAD_REQUEST, code::MESSAGE_ERROR)
    }
}

const TOO_LARGE: NotAsked = NotAsked::Answered(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    code::EXCESSIVE_LOAD,
);

impl Asked {
    /// Reads the request on a new stream; `None`: the request was refused, cancelled or invalid.
    pub(super) async fn read(
        (mut sender, mut receiver): (Sending, Receiving),
        shared: Rc<Shared>,
    ) -> Option<Self> {
        match target(&mut receiver, &shared).await {
            Ok(target) => {
                return Some(Self {
                    target,
                    sender,
                    receiver,
                    shared,
                });
            }
            Err(NotAsked::Cancelled) => shared.traffic.taken_back(),
            Err(NotAsked::Answered(status, code)) => {
                answer_with(&shared, (sender, receiver), &answer::status(status), code);
            }
            Err(NotAsked::Incomplete) => {
                sender.reject(code::REQUEST_INCOMPLETE);
                receiver.reject(code::REQUEST_INCOMPLETE);
            }
            Err(NotAsked::Broken(broken)) => shared.traffic.break_off(broken),
        }
        None
    }
}

async fn target(receiver: &mut Receiving, shared: &Shared) -> Result<String, NotAsked> {
    let mut frames = Frames::new(&shared.budget);
    let limit = patience(FIELDS_TIME_MAX, shared.traffic.connection.quic().rtt());
    let frame = tokio::time::timeout(limit, frames.next(receiver.stream())).await;
    let fields = match frame.map_err(|_| NotAsked::Incomplete)?? {
        Some(Frame { kind, body }) if kind == frame::HEADERS => body,
        Some(_) => {
            let problem = "the peer's request does not begin with a HEADERS frame";
            return Err(NotAsked::Broken(frame::unexpected(problem)));
        }
        None => return Err(NotAsked::Incomplete),
    };
    match message::request(qpack::decode(&fields)?)? {
        Asks::Tunnel(target) => Ok(target),
        Asks::Nothing(status) => Err(NotAsked::Answered(status, code::NO_ERROR)),
    }
}

/// Sends the final answer. `code` tells the peer why the rest of the request is not read.
fn answer_with(
    shared: &Shared,
    (mut sender, mut receiver): (Sending, Receiving),
    answer: &Response<()>,
    code: VarInt,
) {
    let answer = message::push_answer(answer);
    drop(shared.traffic.tasks.spawn(async move {
        let said = tokio::time::timeout(REFUSAL_MAX, sender.say(answer)).await;
        if let Ok(Ok(())) = said {
            // A closed connection needs no answer.
            let _ = sender.finish();
        }
        receiver.reject(code);
    }));
}

impl Ask for Asked {
    type Sender = Sending;
    type Receiver = Receiving;

    fn target(&self) -> &str {
        &self.target
    }

    fn accept(mut self, address: &str) -> Result<(Sending, Receiving), Outcome> {
        let answer = message::push_answer(&answer::granted(address));
        self.sender.say_soon(answer);
        Ok((self.sender, self.receiver))
    }

    fn refuse(self, refusal: &Refusal) {
        let answer = answer::refused(refusal);
        let halves = (self.sender, self.receiver);
        answer_with(&self.shared, halves, &answer, code::NO_ERROR);
    }

    /// If a client resets only its own half, this function never completes, and the gateway notices
    /// the reset after the dial of the target. Waiting for a reset (`received_reset`) would leave
    /// state in the library if the wait is dropped. Until its target is dialled, the stream counts
    /// against the client's limit.
    async fn abandoned(&mut self) {
        self.sender.stopped().await;
        self.shared.traffic.taken_back();
    }
}

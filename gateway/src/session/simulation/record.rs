//! The planned and the observed actions of one stream's applications, and the check of the
//! observations.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::oneshot;

use super::choice::Choices;
use super::profile::{Kind, Profile};
use super::seen::Seen;
use super::stage::{Stage, Whose};
use crate::base::closing::Reason;
use crate::ingress::listener::answer::Answer;
use crate::session::mux::OpenEnd;

/// The indexes of a stream's two applications.
pub(super) const CLIENT: usize = 0;
pub(super) const TARGET: usize = 1;

/// A prime number, so that the bytes do not repeat at a power of two.
const PERIOD: usize = 65_521;
/// Maximum length of a result of [`payload`].
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut choices = Choices::Seed(0);
    let period: Vec<u8> = (0..PERIOD).map(|_| choices.below(256) as u8).collect();
    period
        .iter()
        .copied()
        .cycle()
        .take(PERIOD + PIECE_BYTES_MAX)
        .collect()
});

/// The bytes that application `side` of stream `label` sends, starting at `offset`.
pub(super) fn payload(label: usize, side: usize, offset: u64, length: usize) -> &'static [u8] {
    let start = (offset as usize + label * 7919 + side * 31_337) % PERIOD;
    &BYTES[start..start + length]
}

/// How an application's input ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// An end of file.
    Clean,
    /// An error.
    Failed,
}

/// One application.
#[derive(Debug, Default)]
pub(super) struct Half {
    /// Number of bytes that the application sends.
    pub(super) plan: u64,
    /// Total number of bytes sent and read after which the application resets its connection;
    /// `None`: it does not reset the connection.
    pub(super) aborts: Option<u64>,
    pub(super) sent: u64,
    /// Whether the application has ended its half.
    pub(super) finished: bool,
    pub(super) aborted: bool,
    /// Whether a write failed.
    pub(super) write_failed: bool,
    pub(super) received: u64,
    pub(super) end: Option<End>,
    /// Whether the connection is TCP, so that a cut differs from an end of file.
    pub(super) is_tcp: bool,
    pub(super) started: bool,
    /// Whether the application has closed its connection.
    pub(super) gone: bool,
}

/// How the entry's open ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    /// The open is unanswered, or it was granted.
    Begun,
    Refused,
    Abandoned,
    /// The open was returned, and another exit takes it.
    Returned,
    TurnedAway,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) label: usize,
    pub(super) halves: [Half; 2],
    pub(super) answer: Answer,
    /// The answer that the client receives when its open is granted.
    pub(super) grant: Vec<u8>,
    /// The bytes that the client received before any payload.
    pub(super) told: Vec<u8>,
    /// Number of bytes that were read from the client before the open.
    pub(super) early: usize,
    pub(super) opens_after: Duration,
    pub(super) open: Open,
    /// Number of dials of the stream's target so far.
    pub(super) dials: usize,
    /// Number of these dials that are in progress.
    pub(super) dialling: usize,
    pub(super) dial_takes: Duration,
    /// Whether the target refuses.
    pub(super) refused: bool,
    /// Why the stream may end uncleanly.
    pub(super) excuse: Option<&'static str>,
    pub(super) closed: Option<oneshot::Receiver<Reason>>,
}

pub(super) type Shared = Rc<RefCell<Record>>;

impl Record {
    pub(super) fn draw(stage: &Stage, label: usize) -> Self {
        let choices = &mut stage.choices(Whose::Stream, label as u64);
        let profile = &stage.profile;
        let milliseconds = |choices: &mut Choices, most: usize| {
            Duration::from_millis(choices.below(most + 1) as u64)
        };
        let half = |choices: &mut Choices| Half {
            plan: plan(choices, profile),
            ..Half::default()
        };
        let mut halves = [half(choices), half(choices)];
        let most = halves.iter().map(|half| half.plan as usize).sum::<usize>() + 1;
        for half in &mut halves {
            let aborts = profile.aborts && choices.one_in(3);
            half.aborts = aborts.then(|| choices.below(most) as u64);
        }
        let early = if choices.one_in(4) {
            choices.length(4096)
        } else {
            0
        };
        let early = early.min(halves[CLIENT].plan as usize);
        let answer = choices.of(&[Answer::None, Answer::None, Answer::Socks5, Answer::Connect]);
        let address = match profile.kind {
            Kind::Native | Kind::Http2 => address(label),
            // JMUX does not transfer the address.
            Kind::Jmux => String::new(),
        };
        Self {
            label,
            halves,
            answer,
            grant: answer.granted(&address),
            told: Vec::new(),
            early,
            opens_after: match choices.one_in(2) {
                true => milliseconds(choices, 200),
                false => Duration::ZERO,
            },
            open: Open::Begun,
            dials: 0,
            dialling: 0,
            dial_takes: match profile.slow_dials && choices.one_in(2) {
                true => milliseconds(choices, 400),
                false => Duration::ZERO,
            },
            refused: profile.refusals && choices.one_in(4),
            excuse: None,
            closed: None,
        }
    }

    pub(super) fn url(label: usize) -> String {
        format!("tcp://stream-{label}:1")
    }

    pub(super) fn label_of(url: &str) -> Option<usize> {
        url.strip_prefix("tcp://stream-")?
            .strip_suffix(":1")?
            .parse()
            .ok()
    }

    /// Sets the excuse; only the first call has an effect.
    pub(super) fn excuse(&mut self, excuse: &'static str) {
        self.excuse.get_or_insert(excuse);
    }

    /// Checks `bytes` that application `side` has read. The bytes may begin with the answer to the
    /// application's request.
    ///
    /// # Errors
    /// The bytes differ from the bytes that were sent.
    pub(super) fn receive(&mut self, side: usize, mut bytes: &[u8]) -> Result<(), String> {
        let grant = &self.grant;
        if side == CLIENT && self.told.len() < grant.len() {
            let length = (grant.len() - self.told.len()).min(bytes.len());
            self.told.extend_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
        }
        if side == CLIENT && self.told.len() >= grant.len() && self.told != *grant {
            // A refusal may be longer than the grant.
            self.told.extend_from_slice(bytes);
            return Ok(());
        }
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            let half = &mut self.halves[side];
            let expected = payload(self.label, 1 - side, half.received, piece.len());
            if piece != expected {
                let differs = piece
                    .iter()
                    .zip(expected)
                    .position(|(one, other)| one != other);
                let at = half.received + differs.unwrap_or(0) as u64;
                let label = self.label;
                return Err(format!(
                    "stream {label}: side {side} got a wrong byte at offset {at}"
                ));
            }
            half.received += piece.len() as u64;
        }
        let (received, sent) = (self.halves[side].received, self.halves[1 - side].sent);
        if received > sent {
            let label = self.label;
            return Err(format!(
                "stream {label}: side {side} got {received} of {sent} bytes"
            ));
        }
        Ok(())
    }

    /// Records that the open failed, as the entry's driver reports.
    pub(super) fn ended(&mut self, end: &OpenEnd) -> Result<(), String> {
        let open = match end {
            OpenEnd::Refused(_) | OpenEnd::Failed(..) => Open::Refused,
            OpenEnd::Abandoned => Open::Abandoned,
            OpenEnd::Returned(_) => Open::Returned,
        };
        if self.open != Open::Begun {
            return Err(format!(
                "stream {}: {open:?} after {:?}",
                self.label, self.open
            ));
        }
        self.open = open;
        Ok(())
    }

    /// Whether all parts of the stream are done.
    pub(super) fn is_over(&self) -> bool {
        let [client, target] = &self.halves;
        client.gone && self.dialling == 0 && target.started == target.gone
    }

    /// # Errors
    /// The mismatch.
    pub(super) fn judge(&mut self, stage: &Stage) -> Result<(), String> {
        for side in [CLIENT, TARGET] {
            self.judge_end(side)?;
        }
        let reason = self
            .closed
            .as_mut()
            .and_then(|closed| closed.try_recv().ok());
        self.note(stage);
        if self.refused && !matches!(self.open, Open::Returned) && self.halves[TARGET].started {
            return Err("a target that refuses was reached".to_owned());
        }
        // A client may reset its connection in the middle of the answer.
        if self.open == Open::Begun && !self.grant.starts_with(&self.told) {
            return Err(format!(
                "its client was told {:?}, although the open was not refused",
                self.told
            ));
        }
        if self.excuse.is_some() {
            return Ok(());
        }
        let wrong = |what: &str| Err(format!("{what}, without a cause"));
        if self.refused && self.open != Open::Returned {
            return match self.open {
                Open::Refused => Ok(()),
                _ => wrong("an open that was refused was not answered"),
            };
        }
        match self.open {
            Open::Begun => {
                if reason != Some(Reason::Completed) {
                    return wrong(&format!("it ended as {reason:?}"));
                }
            }
            Open::Returned => {}
            open => return wrong(&format!("its open was {open:?}")),
        }
        if self.told != self.grant {
            return wrong(&format!("its client was told {:?}", self.told));
        }
        for side in [CLIENT, TARGET] {
            let (half, other) = (&self.halves[side], &self.halves[1 - side]);
            if half.end != Some(End::Clean) || half.received != other.plan {
                return wrong(&format!("side {side} did not get all"));
            }
        }
        Ok(())
    }

    /// Checks that an end of file follows the last byte, and that a cut never looks like an end of
    /// file.
    fn judge_end(&self, side: usize) -> Result<(), String> {
        let (half, other) = (&self.halves[side], &self.halves[1 - side]);
        let was_told = side == CLIENT && !self.told.is_empty() && self.told != self.grant;
        // A cut Unix socket looks like a socket that ended.
        let may_be_cut = !half.is_tcp && self.excuse.is_some() || was_told;
        let unexcused = !half.is_tcp && self.refused;
        if half.end != Some(End::Clean) || may_be_cut || unexcused {
            return Ok(());
        }
        if !other.finished || half.received != other.plan {
            let (received, plan) = (half.received, other.plan);
            return Err(format!(
                "side {side} took a cut for an end of file, after {received} of {plan} bytes"
            ));
        }
        Ok(())
    }

    fn note(&self, stage: &Stage) {
        let [client, target] = &self.halves;
        let clean = |half: &Half| half.end == Some(End::Clean);
        if clean(client) && clean(target) && self.excuse.is_none() && self.open == Open::Begun {
            stage.see(Seen::CleanEnd);
            if client.plan == 0 && target.plan == 0 {
                stage.see(Seen::EmptyStream);
            }
        }
        if target.started && client.aborted {
            stage.see(Seen::ClientReset);
        }
        if target.aborted {
            stage.see(Seen::TargetReset);
        }
        let has_answer = self.answer != Answer::None;
        if self.refused && self.open == Open::Refused {
            stage.see(Seen::Refused);
            if has_answer && !self.told.is_empty() {
                stage.see(Seen::RefusedWithAnswer);
            }
        }
        if has_answer && self.told == self.grant {
            stage.see(Seen::GrantedWithAnswer);
        }
        if self.early > 0 {
            stage.see(Seen::EarlyGiven);
        }
        if self.dials > 0 && !target.started && !self.refused {
            stage.see(Seen::CutWhileDialling);
        }
    }
}

/// The address that the exit reports for the target of stream `label`.
pub(super) fn address(label: usize) -> String {
    format!("127.0.0.1:{}", label + 1)
}

fn plan(choices: &mut Choices, profile: &Profile) -> u64 {
    if choices.one_in(4) {
        return 0;
    }
    let most = profile.plan_bytes_max;
    match choices.one_in(if profile.kernel { 2 } else { 3 }) {
        true => (most - choices.below(most / 2)) as u64,
        false => choices.length(most) as u64,
    }
}

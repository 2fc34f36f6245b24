//! The choice of a backend and the verdict over what it made.
//!
//! Owns the order (netem, then NFQUEUE, then refuse), the probe that each has to pass and the
//! refusal that names what every attempt met. In comes a [`Plan`]; out comes an [`InForce`] with its
//! report. A backend that does not pass is taken down before the next one is tried.

use std::{fmt, fs, os::unix::net::UnixStream, time::Duration};

use muxtunnel_codes::Code;

use crate::{
    impairments::Impairments,
    nfqueue::{self, Nfqueue, NfqueueError, line::Counts, rules::Family},
    plan::Plan,
    probe::{self, Measured, Off, ProbeError},
    report::{Backend, Report},
    tc::{self, NetemError},
};

/// Which backends may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// netem where the kernel has it, else NFQUEUE.
    Auto,
    /// netem or nothing.
    Netem,
    /// NFQUEUE or nothing.
    Nfqueue,
}

/// A delay in force, probed.
#[derive(Debug)]
pub struct InForce {
    /// What was made and measured.
    pub report: Report,
    line: Option<Nfqueue>,
}

/// No delay could be made that is the one asked for.
#[derive(Debug, thiserror::Error)]
pub struct Refusal {
    attempts: Vec<Attempt>,
}

/// What one backend met.
#[derive(Debug)]
struct Attempt {
    backend: &'static str,
    failure: Failure,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Netem(#[from] NetemError),
    #[error(transparent)]
    Nfqueue(#[from] NfqueueError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Off(#[from] Off),
}

impl Refusal {
    /// [`Code::WanDelayOff`] when a backend worked but made another delay, else
    /// [`Code::WanUnsupported`].
    #[must_use]
    pub fn code(&self) -> Code {
        let off = |attempt: &Attempt| {
            matches!(
                attempt.failure,
                Failure::Off(_) | Failure::Probe(ProbeError::Lost { .. })
            )
        };
        match self.attempts.iter().any(off) {
            true => Code::WanDelayOff,
            false => Code::WanUnsupported,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code();
        let what = match code {
            Code::WanDelayOff => "the path made is not the path asked for",
            _ => "no path can be emulated here",
        };
        write!(f, "{code} {}: {what}", code.reason())?;
        self.attempts
            .iter()
            .try_for_each(|attempt| write!(f, "; {attempt}"))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.failure)
    }
}

/// Puts a plan into force with the first backend that passes the probe. A path that does nothing to
/// packets removes what an earlier run left behind and makes nothing.
///
/// # Errors
/// [`Refusal`]; then nothing is in force.
pub fn start(plan: &Plan, choice: Choice) -> Result<InForce, Refusal> {
    if plan.impairments().is_none() {
        return Ok(clear(plan));
    }
    let mut attempts = Vec::new();
    if choice != Choice::Nfqueue {
        match start_netem(plan) {
            Ok(in_force) => return Ok(in_force),
            Err(failure) => attempts.push(Attempt {
                backend: "netem",
                failure,
            }),
        }
    } else {
        tc::remove_leftovers(plan.interface());
    }
    if choice != Choice::Netem {
        match start_nfqueue(plan) {
            Ok(mut in_force) => {
                in_force.report.refused = attempts.iter().map(ToString::to_string).collect();
                return Ok(in_force);
            }
            Err(failure) => attempts.push(Attempt {
                backend: "nfqueue",
                failure,
            }),
        }
    }
    Err(Refusal { attempts })
}

fn clear(plan: &Plan) -> InForce {
    tc::remove_leftovers(plan.interface());
    nfqueue::remove_leftovers(Family::Ipv4);
    nfqueue::remove_leftovers(Family::Ipv6);
    let report = Report::new(plan, Backend::None, None, false);
    InForce { report, line: None }
}

fn start_netem(plan: &Plan) -> Result<InForce, Failure> {
    let measured = tc::start(plan)?;
    if let Err(off) = measured.judge(plan.impairments()) {
        tc::remove_leftovers(plan.interface());
        return Err(off.into());
    }
    // A chain left by an NFQUEUE run would hold up traffic for ever.
    nfqueue::remove_leftovers(Family::Ipv4);
    nfqueue::remove_leftovers(Family::Ipv6);
    let report = Report::new(plan, Backend::Netem, Some(measured), true);
    Ok(InForce { report, line: None })
}

fn start_nfqueue(plan: &Plan) -> Result<InForce, Failure> {
    let line = Nfqueue::start(plan)?;
    match prove(plan.impairments()) {
        Ok(measured) => {
            let report = Report::new(plan, Backend::Nfqueue, Some(measured), line.delays_ipv6());
            Ok(InForce {
                report,
                line: Some(line),
            })
        }
        Err(failure) => {
            line.stop()?;
            Err(failure)
        }
    }
}

fn prove(path: &Impairments) -> Result<Measured, Failure> {
    let measured = probe::measure(path)?;
    measured.judge(path)?;
    Ok(measured)
}

impl InForce {
    /// Becomes readable when the delay line has broken; `None` where the kernel makes the delay.
    #[must_use]
    pub fn ended(&self) -> Option<&UnixStream> {
        self.line.as_ref().map(Nfqueue::ended)
    }

    /// From here on packets take this one-way delay, where the delay line makes it.
    pub fn set_one_way_delay(&self, one_way_delay: Duration) {
        if let Some(line) = &self.line {
            line.set_one_way_delay(one_way_delay);
        }
    }

    /// Takes it out of force. Returns what became of packets in the delay line, nothing for the other
    /// backends.
    ///
    /// # Errors
    /// Why rules could not be removed, or why the delay line had broken before.
    pub fn stop(self, plan: &Plan) -> Result<Counts, NfqueueError> {
        match self.line {
            Some(line) => line.stop(),
            None => {
                tc::remove_leftovers(plan.interface());
                Ok(Counts::default())
            }
        }
    }

    /// Ends after the delay line broke: the rules stay, so that the traffic stops.
    ///
    /// # Errors
    /// Why it broke.
    pub fn abandon(self) -> Result<(), NfqueueError> {
        self.line.map_or(Ok(()), Nfqueue::abandon)
    }
}

/// Whether the network namespace has this interface.
#[must_use]
pub fn interface_exists(name: &str) -> bool {
    fs::read_to_string("/proc/net/dev").is_ok_and(|table| {
        table
            .lines()
            .filter_map(|line| line.split_once(':'))
            .any(|(interface, _)| interface.trim() == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(failures: Vec<Failure>) -> Refusal {
        let attempts = failures
            .into_iter()
            .zip(["netem", "nfqueue"])
            .map(|(failure, backend)| Attempt { backend, failure })
            .collect();
        Refusal { attempts }
    }

    #[test]
    fn a_refusal_names_every_attempt_and_its_code() {
        let netem = NetemError::NotInForce {
            interface: "eth0".to_owned(),
            asked: "a delay of 50 ms".to_owned(),
            found: "no netem".to_owned(),
        };
        let lost = ProbeError::Io(std::io::Error::from(std::io::ErrorKind::AddrInUse));
        assert_eq!(
            refusal(vec![netem.into(), lost.into()]).to_string(),
            "MT0404 WanUnsupported: no path can be emulated here; netem: `tc` reports no netem on eth0 \
             instead of a delay of 50 ms; nfqueue: probing on lo: address in use"
        );
    }

    #[test]
    fn a_delay_that_is_off_has_a_code_of_its_own_and_both_figures() {
        let off = Off::Delay {
            asked: Duration::from_millis(50),
            measured: Duration::from_micros(61_200),
            tolerance: Duration::from_micros(1500),
        };
        assert_eq!(
            refusal(vec![off.into()]).to_string(),
            "MT0405 WanDelayOff: the path made is not the path asked for; netem: asked for 50 ms, \
             measured 61.2 ms (the tolerance is 1.5 ms)"
        );
        let lost = refusal(vec![
            ProbeError::Lost {
                arrived: 0,
                sent: 20,
            }
            .into(),
        ]);
        assert_eq!(lost.code(), Code::WanDelayOff);
    }
}

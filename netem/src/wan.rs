//! The choice of a backend, and the verdict over its delay.
//!
//! The module decides the order (netem, then NFQUEUE, then a refusal), runs the probe of each
//! backend, and builds the refusal with the error of every attempt. A [`Plan`] becomes an
//! [`InForce`] with its report. If a backend fails the probe, its rules are removed before the next
//! backend is tried.

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

/// The permitted backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// netem if the kernel has it, otherwise NFQUEUE.
    Auto,
    /// Only netem.
    Netem,
    /// Only NFQUEUE.
    Nfqueue,
}

/// An active delay that has passed the probe.
#[derive(Debug)]
pub struct InForce {
    /// The emulation and its measurements.
    pub report: Report,
    line: Option<Nfqueue>,
}

/// No backend achieved the requested delay.
#[derive(Debug, thiserror::Error)]
pub struct Refusal {
    attempts: Vec<Attempt>,
}

/// The error of one backend.
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
    /// [`Code::WanDelayOff`] if a backend worked with a wrong delay, otherwise
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
            Code::WanDelayOff => "the measured path differs from the requested path",
            _ => "no backend can emulate a path in this network namespace",
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

/// Applies a plan with the first backend that passes the probe. For a path without impairments, it
/// only removes the rules of an earlier run.
///
/// # Errors
/// [`Refusal`]. After a refusal, no rule of this start is in force.
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
    // The chain of an earlier NFQUEUE run would block traffic permanently.
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
    /// A descriptor that becomes readable when the delay line has failed; `None` if the kernel
    /// delays packets.
    #[must_use]
    pub fn ended(&self) -> Option<&UnixStream> {
        self.line.as_ref().map(Nfqueue::ended)
    }

    /// Sets the one-way delay of later packets, if the delay line delays them.
    pub fn set_one_way_delay(&self, one_way_delay: Duration) {
        if let Some(line) = &self.line {
            line.set_one_way_delay(one_way_delay);
        }
    }

    /// Removes the delay. Returns the counts of the delay line. For other backends, the counts are
    /// zero.
    ///
    /// # Errors
    /// If rules cannot be removed, or if the delay line had failed.
    pub fn stop(self, plan: &Plan) -> Result<Counts, NfqueueError> {
        match self.line {
            Some(line) => line.stop(),
            None => {
                tc::remove_leftovers(plan.interface());
                Ok(Counts::default())
            }
        }
    }

    /// Ends after a failure of the delay line. The rules stay, so that the traffic stops.
    ///
    /// # Errors
    /// The failure of the delay line.
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
            "MT0404 WanUnsupported: no backend can emulate a path in this network namespace; netem: `tc` reports no netem on eth0 \
             instead of a delay of 50 ms; nfqueue: the probe on lo failed: address in use"
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
            "MT0405 WanDelayOff: the measured path differs from the requested path; netem: requested a one-way delay of 50 ms, measured \
             61.2 ms (the tolerance is 1.5 ms)"
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

//! A forward at run time: its counters and its limits, which all workers share.
//!
//! [`Forwards`] returns the same [`Forward`] to every worker that listens for the forward, so
//! changed limits also apply to open streams. A forward exists as long as a listener or a stream
//! refers to the forward. So the number of forwards is at most that of the configuration, plus the
//! removed forwards that still have open streams.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Limits};
use parking_lot::{Mutex, MutexGuard};

use crate::base::counters::StreamCounters;
use crate::base::dial_window::DialWindow;
use crate::base::pace::Pace;
use crate::base::token_bucket::Bucket;

/// Burst: after a pause, the forward admits at once as many connections as the rate admits in this
/// time.
const OPENS_BURST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) name: String,
    pub(crate) streams: StreamCounters,
    /// The recent dials of the forward's target.
    pub(crate) dials: DialWindow,
    gate: Mutex<Gate>,
    /// Rate of bytes from clients into carriers.
    pub(crate) up: Pace,
    /// Rate of bytes from carriers to clients.
    pub(crate) down: Pace,
}

/// Admission of new connections.
#[derive(Debug, Default)]
struct Gate {
    limits: Limits,
    admitted: u32,
    opens: Option<Bucket>,
}

impl Forward {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            streams: StreamCounters::default(),
            dials: DialWindow::new(Instant::now()),
            gate: Mutex::default(),
            up: Pace::default(),
            down: Pace::default(),
        }
    }

    /// Admits a new connection.
    ///
    /// # Errors
    /// The code of the limit that refuses the connection.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<Admission, Code> {
        let mut gate = self.gate();
        if gate
            .limits
            .streams
            .is_some_and(|limit| gate.admitted >= limit)
        {
            return Err(Code::ForwardStreamLimit);
        }
        if gate
            .opens
            .as_mut()
            .is_some_and(|opens| !opens.try_take(now, 1))
        {
            return Err(Code::ForwardOpenLimit);
        }
        gate.admitted += 1;
        Ok(Admission(Arc::clone(self)))
    }

    /// Counts an open that was refused or failed.
    pub(crate) fn refused(&self, code: Code) {
        self.streams.refused(code);
        if matches!(
            code,
            Code::OpenFailed | Code::OpenTimedOut | Code::OpenRefused
        ) {
            self.dials.failed(Instant::now());
        }
    }

    fn set_limits(&self, limits: Limits) {
        let mut gate = self.gate();
        if gate.limits.opens_per_second != limits.opens_per_second {
            gate.opens = limits
                .opens_per_second
                .map(|opens| Bucket::new(opens.into(), OPENS_BURST));
        }
        gate.limits = limits;
        let bytes = limits.bits_per_second.map(config::BitRate::bytes);
        self.up.set(bytes);
        self.down.set(bytes);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock()
    }
}

/// One connection's place among its forward's streams. Dropping the value frees the place.
#[derive(Debug)]
pub(crate) struct Admission(Arc<Forward>);

impl std::ops::Deref for Admission {
    type Target = Forward;

    fn deref(&self) -> &Forward {
        &self.0
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.gate().admitted -= 1;
    }
}

/// The forwards of a gateway, by name.
#[derive(Debug, Default)]
pub(crate) struct Forwards(Mutex<BTreeMap<String, Weak<Forward>>>);

impl Forwards {
    /// The forward with this name, with its current limits.
    pub(crate) fn get(&self, wanted: &config::Listener) -> Arc<Forward> {
        self.named(&wanted.name, wanted.limits)
    }

    /// Works as [`Self::get`], with only the name and the limits.
    pub(crate) fn named(&self, name: &str, limits: Limits) -> Arc<Forward> {
        let mut known = self.0.lock();
        known.retain(|_, forward| forward.strong_count() > 0);
        let forward = known.get(name).and_then(Weak::upgrade);
        let forward = forward.unwrap_or_else(|| {
            let forward = Arc::new(Forward::new(name));
            known.insert(name.to_owned(), Arc::downgrade(&forward));
            forward
        });
        forward.set_limits(limits);
        forward
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(limits: Limits) -> config::Listener {
        config::Listener::from(&config::Forward {
            name: "web".to_owned(),
            listen: "127.0.0.1:1".to_owned(),
            targets: vec![config::Target::Tcp {
                host: "a".to_owned(),
                port: 1,
            }],
            proxy_protocol: config::ProxyProtocol::default(),
            priority: config::Priority::default(),
            limits,
        })
    }

    #[test]
    fn a_place_that_was_given_up_is_free_again() {
        let forwards = Forwards::default();
        let two = Limits {
            streams: Some(2),
            ..Limits::default()
        };
        let forward = forwards.get(&wanted(two));
        let now = Instant::now();
        let first = forward.admit(now).unwrap();
        let _second = forward.admit(now).unwrap();
        assert_eq!(forward.admit(now).unwrap_err(), Code::ForwardStreamLimit);
        drop(first);
        assert!(forward.admit(now).is_ok());
    }

    #[test]
    fn opens_beyond_the_rate_are_kept_out_until_time_has_passed() {
        let forwards = Forwards::default();
        let three = Limits {
            opens_per_second: Some(3),
            ..Limits::default()
        };
        let forward = forwards.get(&wanted(three));
        let now = Instant::now();
        assert_eq!((0..9).filter(|_| forward.admit(now).is_ok()).count(), 3);
        assert_eq!(forward.admit(now).unwrap_err(), Code::ForwardOpenLimit);
        assert!(forward.admit(now + Duration::from_millis(334)).is_ok());
    }

    #[test]
    fn every_worker_gets_the_same_forward_and_the_newest_limits() {
        let forwards = Forwards::default();
        let one = forwards.get(&wanted(Limits::default()));
        let limits = Limits {
            bits_per_second: Some(config::BitRate(8_000_000)),
            ..Limits::default()
        };
        assert!(one.up.limited().is_none());
        let other = forwards.get(&wanted(limits));
        assert!(Arc::ptr_eq(&one, &other) && one.up.limited().is_some());
        drop((one, other));
        assert_eq!(
            Arc::strong_count(&forwards.get(&wanted(limits))),
            1,
            "a forward that is not in use is dropped"
        );
    }
}

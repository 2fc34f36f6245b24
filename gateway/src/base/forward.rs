//! A forward at run time: its counters and its limits, which all workers share; and the admission of
//! a stream.
//!
//! [`Forwards`] returns the same [`Forward`] to every worker that listens for the forward, so
//! changed limits also apply to open streams. A forward exists as long as a listener or a stream
//! refers to the forward. So the number of forwards is at most that of the configuration, plus the
//! removed forwards that still have open streams.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Limits};
use parking_lot::Mutex;

use crate::base::counters::StreamCounters;
use crate::base::dial_window::DialWindow;
use crate::base::limiter::{Limiter, Place};
use crate::base::pace::Pace;
use crate::base::peers::Peer;

#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) name: String,
    pub(crate) streams: StreamCounters,
    /// The recent dials of the forward's target.
    pub(crate) dials: DialWindow,
    limiter: Arc<Limiter>,
}

impl Forward {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            streams: StreamCounters::default(),
            dials: DialWindow::new(Instant::now()),
            limiter: Limiter::new(Code::ForwardStreamLimit, Code::ForwardOpenLimit),
        }
    }

    /// Admits a new connection.
    ///
    /// # Errors
    /// The code of the limit that refuses the connection.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<Admission, Code> {
        let place = self.limiter.admit(now)?;
        Ok(Admission {
            forward: Some((Arc::clone(self), place)),
            peer: None,
        })
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
}

/// One stream's places among the streams of its forward and of its peer. Dropping the value frees
/// both places.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The forward, if this side has the forward.
    forward: Option<(Arc<Forward>, Place)>,
    /// The peer, if this side is an exit that lists the peer.
    peer: Option<(Arc<Peer>, Place)>,
}

impl Admission {
    /// The admission with the stream's place among the streams of its peer.
    pub(crate) fn with_peer(self, peer: Option<(Arc<Peer>, Place)>) -> Self {
        Self { peer, ..self }
    }

    /// The forward.
    pub(crate) fn forward(&self) -> Option<&Forward> {
        self.forward.as_ref().map(|(forward, _)| &**forward)
    }

    /// The counters of the forward and of the peer.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &StreamCounters> {
        let forward = self.forward().map(|forward| &forward.streams);
        let peer = self.peer.as_ref().map(|(peer, _)| &peer.streams);
        forward.into_iter().chain(peer)
    }

    /// The rate limit from the local socket into the carrier. Only one of both places has rate limits:
    /// forwards of an exit have none.
    pub(crate) fn up(&self) -> Option<&Pace> {
        self.limiters().find_map(|limiter| limiter.up.limited())
    }

    /// The rate limit from the carrier to the local socket.
    pub(crate) fn down(&self) -> Option<&Pace> {
        self.limiters().find_map(|limiter| limiter.down.limited())
    }

    fn limiters(&self) -> impl Iterator<Item = &Limiter> {
        let forward = self.forward.as_ref().map(|(_, place)| place.limiter());
        let peer = self.peer.as_ref().map(|(_, place)| place.limiter());
        forward.into_iter().chain(peer)
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
        forward.limiter.set(limits);
        forward
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert!(one.limiter.up.limited().is_none());
        let other = forwards.get(&wanted(limits));
        assert!(Arc::ptr_eq(&one, &other) && one.limiter.up.limited().is_some());
        drop((one, other));
        assert_eq!(
            Arc::strong_count(&forwards.get(&wanted(limits))),
            1,
            "a forward that is not in use is dropped"
        );
    }
}

//! The limits of the streams of a forward or of a peer, which all workers share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{BitRate, Limits};
use parking_lot::{Mutex, MutexGuard};

use crate::base::pace::Pace;
use crate::base::token_bucket::Bucket;

/// Burst: after a pause, the limiter admits at once as many streams as the rate admits in this time.
const OPENS_BURST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Limiter {
    /// The code of a refusal because of the number of streams.
    too_many: Code,
    /// The code of a refusal because of the rate of new streams.
    too_fast: Code,
    gate: Mutex<Gate>,
    /// Rate of bytes from local sockets into carriers.
    pub(crate) up: Pace,
    /// Rate of bytes from carriers to local sockets.
    pub(crate) down: Pace,
}

/// Admission of new streams.
#[derive(Debug, Default)]
struct Gate {
    limits: Limits,
    admitted: u32,
    opens: Option<Bucket>,
}

impl Limiter {
    /// A limiter without limits. `too_many`, `too_fast`: the codes of its refusals.
    pub(crate) fn new(too_many: Code, too_fast: Code) -> Arc<Self> {
        Arc::new(Self {
            too_many,
            too_fast,
            gate: Mutex::default(),
            up: Pace::default(),
            down: Pace::default(),
        })
    }

    /// Admits a new stream.
    ///
    /// # Errors
    /// The code of the limit that refuses the stream.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<Place, Code> {
        let mut gate = self.gate();
        if gate
            .limits
            .streams
            .is_some_and(|limit| gate.admitted >= limit)
        {
            return Err(self.too_many);
        }
        if gate
            .opens
            .as_mut()
            .is_some_and(|opens| !opens.try_take(now, 1))
        {
            return Err(self.too_fast);
        }
        gate.admitted += 1;
        Ok(Place(Arc::clone(self)))
    }

    /// Sets the limits, also for open streams.
    pub(crate) fn set(&self, limits: Limits) {
        let mut gate = self.gate();
        if gate.limits.opens_per_second != limits.opens_per_second {
            gate.opens = limits
                .opens_per_second
                .map(|opens| Bucket::new(opens.into(), OPENS_BURST));
        }
        gate.limits = limits;
        let bytes = limits.bits_per_second.map(BitRate::bytes);
        self.up.set(bytes);
        self.down.set(bytes);
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock()
    }
}

/// One stream's place. Dropping the value frees the place.
#[derive(Debug)]
pub(crate) struct Place(Arc<Limiter>);

impl Place {
    pub(crate) fn limiter(&self) -> &Limiter {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.gate().admitted -= 1;
    }
}

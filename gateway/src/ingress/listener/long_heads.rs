//! Bounds the memory of long heads of HTTP requests.

use std::net::IpAddr;
use std::sync::Arc;

use super::Rejection;
use crate::base::handshake_limiter::{EarlyDrop, HandshakeLimiter, Permit};

/// Maximum number of clients of one worker whose incomplete request is longer than
/// [`super::GREETING_BYTES_MAX`]. Together they have at most 8 MiB.
pub(super) const LONG_HEADS_MAX: usize = 128;

/// Grants permits for long heads. If no permit is free, the address with the most long heads loses
/// its oldest.
#[derive(Clone)]
pub(crate) struct LongHeads(Arc<HandshakeLimiter>);

impl Default for LongHeads {
    fn default() -> Self {
        Self(HandshakeLimiter::new(LONG_HEADS_MAX, EarlyDrop::Off))
    }
}

impl LongHeads {
    /// Takes a permit for a client with this address.
    ///
    /// # Errors
    /// No permit is free.
    pub(super) fn enter(&self, address: Option<IpAddr>) -> Result<Permit, Rejection> {
        self.0.enter(address).map_err(|_| Rejection::evicted())
    }

    /// The number of long heads.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.0.taken()
    }
}

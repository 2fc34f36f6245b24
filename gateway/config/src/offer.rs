//! A text that an exit gives to entries that ask for it.

use crate::{Config, ConfigError, Role, Security};

/// The target, `HOST:PORT`, by which an entry asks its exit for [`Config::offer`]. No host has a name in `.invalid`
/// (RFC 6761, section 6.4), so it hides no target.
pub const OFFER_TARGET: &str = "offer.muxtunnel.invalid:1";
/// Longest offer, bytes: 64 KiB.
pub const OFFER_BYTES_MAX: usize = 1 << 16;

/// Only an exit offers something, to entries that show a certificate, and not without bounds.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(offer) = &config.offer else {
        return Ok(());
    };
    let problem = if config.role != Role::Exit {
        "only an exit offers something to its entries".to_owned()
    } else if !matches!(config.security, Security::MutualTls(_)) {
        "is for entries that show a certificate: it needs security.mode MutualTls".to_owned()
    } else if offer.is_empty() {
        "is empty: leave it out".to_owned()
    } else if offer.len() > OFFER_BYTES_MAX {
        format!("{} bytes, at most {OFFER_BYTES_MAX}", offer.len())
    } else {
        return Ok(());
    };
    Err(ConfigError::field("offer", problem))
}

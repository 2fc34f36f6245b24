//! The offer: a text that an exit sends to entries on request.

use crate::{Config, ConfigError, Role, Security};

/// The target, `HOST:PORT`, that an entry opens to receive the exit's [`Config::offer`]. No host
/// has a name in `.invalid` (RFC 6761, section 6.4), so the name never hides a real target.
pub const OFFER_TARGET: &str = "offer.muxtunnel.invalid:1";
/// Maximum length of an offer: 64 KiB.
pub const OFFER_BYTES_MAX: usize = 1 << 16;

/// Checks that only an exit has an offer, that entries must present a certificate, and that the
/// length is in range.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(offer) = &config.offer else {
        return Ok(());
    };
    let problem = if config.role != Role::Exit {
        "only an exit has an offer: remove the field".to_owned()
    } else if !matches!(config.security, Security::MutualTls(_)) {
        "needs security.mode MutualTls, so that entries show a certificate".to_owned()
    } else if offer.is_empty() {
        "is empty: remove the field".to_owned()
    } else if offer.len() > OFFER_BYTES_MAX {
        format!(
            "has {} bytes, at most {OFFER_BYTES_MAX} are allowed",
            offer.len()
        )
    } else {
        return Ok(());
    };
    Err(ConfigError::field("offer", problem))
}

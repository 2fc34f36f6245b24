//! The load balancers in front of a carrier port whose PROXY headers count: `trustedProxies`.

use crate::{Cidr, Config, ConfigError, Role, UNIX_PREFIX};

/// Most networks in `trustedProxies`.
pub const TRUSTED_PROXIES_MAX: usize = 64;

/// Only a port that accepts carriers has them.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    const FIELD: &str = "trustedProxies";
    let networks = &config.trusted_proxies;
    let problem = match config.listen.as_deref() {
        _ if networks.is_empty() => return Ok(()),
        _ if config.role == Role::Entry => "only an exit or a rendezvous accepts carriers",
        None => "an exit that is visited at a rendezvous listens for no carriers",
        Some(listen) if config.is_stdio() || listen.starts_with(UNIX_PREFIX) => {
            "carriers have an address only where listen is ADDRESS:PORT"
        }
        Some(_) => return check_trusted_proxies(FIELD, networks),
    };
    Err(ConfigError::field(FIELD, problem))
}

/// Whether there are at most [`TRUSTED_PROXIES_MAX`] networks, none of which is every address: each client could name any
/// address as its own. `field` is where they are written.
///
/// # Errors
/// What is wrong with which one.
pub fn check_trusted_proxies(field: &str, networks: &[Cidr]) -> Result<(), ConfigError> {
    let count = networks.len();
    if count > TRUSTED_PROXIES_MAX {
        let problem = format!("{count} entries, at most {TRUSTED_PROXIES_MAX}");
        return Err(ConfigError::field(field, problem));
    }
    match networks
        .iter()
        .enumerate()
        .find(|(_, cidr)| cidr.is_every())
    {
        Some((index, cidr)) => Err(ConfigError::field(
            format!("{field}[{index}]"),
            format!("{cidr} has every address: name the networks of the load balancers"),
        )),
        None => Ok(()),
    }
}

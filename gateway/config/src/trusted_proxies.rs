//! The load balancers in front of a carrier port whose PROXY headers count: `trustedProxies`.

use crate::{Config, ConfigError, Role, UNIX_PREFIX};

/// Most networks in `trustedProxies`.
pub const TRUSTED_PROXIES_MAX: usize = 64;

/// Only a port that accepts carriers has them. None is every address: each client could name any address as its own.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    let proxies = &config.trusted_proxies;
    if proxies.is_empty() {
        return Ok(());
    }
    if let Some(problem) = problem(config) {
        return Err(ConfigError::field("trustedProxies", problem));
    }
    match proxies.iter().enumerate().find(|(_, cidr)| cidr.is_every()) {
        Some((index, cidr)) => Err(ConfigError::field(
            format!("trustedProxies[{index}]"),
            format!("{cidr} has every address: name the networks of the load balancers"),
        )),
        None => Ok(()),
    }
}

fn problem(config: &Config) -> Option<String> {
    let count = config.trusted_proxies.len();
    let problem = match config.listen.as_deref() {
        _ if config.role == Role::Entry => "only an exit or a rendezvous accepts carriers",
        None => "an exit that is visited at a rendezvous listens for no carriers",
        Some(listen) if config.is_stdio() || listen.starts_with(UNIX_PREFIX) => {
            "carriers have an address only where listen is ADDRESS:PORT"
        }
        Some(_) if count > TRUSTED_PROXIES_MAX => {
            return Some(format!("{count} entries, at most {TRUSTED_PROXIES_MAX}"));
        }
        Some(_) => return None,
    };
    Some(problem.to_owned())
}

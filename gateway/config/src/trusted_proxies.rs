//! `trustedProxies`: the load balancers in front of a carrier port whose PROXY headers the gateway
//! trusts.

use crate::{Config, ConfigError, Role, UNIX_PREFIX};

/// Maximum number of networks in `trustedProxies`.
pub const TRUSTED_PROXIES_MAX: usize = 64;

/// Checks that only a gateway that listens on a TCP port has the field, and that no network contains
/// every address. With such a network, any client could claim any address.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    const FIELD: &str = "trustedProxies";
    let networks = &config.trusted_proxies;
    let problem = match config.listen.as_deref() {
        _ if networks.is_empty() => return Ok(()),
        _ if config.role == Role::Entry => {
            "only an exit or a rendezvous accepts carriers: remove the field"
        }
        None => "an exit behind a rendezvous does not listen for carriers: remove the field",
        Some(listen) if config.is_stdio() || listen.starts_with(UNIX_PREFIX) => {
            "is only for listen: ADDRESS:PORT, because other carriers have no client address"
        }
        Some(_) => {
            ConfigError::unless_at_most(FIELD, networks.len(), TRUSTED_PROXIES_MAX)?;
            return ConfigError::each(FIELD, networks, |cidr| match cidr.is_every() {
                false => Ok(()),
                true => Err(format!(
                    "{cidr} contains every address: list only the networks of the load balancers"
                )),
            });
        }
    };
    Err(ConfigError::field(FIELD, problem))
}

//! `adminHosts`: the names under which clients reach the admin port.

use crate::{Config, ConfigError};

/// Maximum number of names in `adminHosts`.
pub const ADMIN_HOSTS_MAX: usize = 16;
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 253;

pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    const FIELD: &str = "adminHosts";
    let names = &config.admin_hosts;
    if !names.is_empty() && config.admin.is_none() {
        return Err(ConfigError::field(FIELD, "needs the field admin"));
    }
    ConfigError::unless_at_most(FIELD, names.len(), ADMIN_HOSTS_MAX)?;
    let is_name = |name: &String| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_known)
    };
    let problem = || "is not a host name, such as gateway.example.com, without a port".to_owned();
    ConfigError::each(FIELD, names, |name| {
        is_name(name).then_some(()).ok_or_else(problem)
    })
}

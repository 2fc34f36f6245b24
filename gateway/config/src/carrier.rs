//! Ways of carriers other than a TCP port: a Unix socket, this process's own pipes, a command's.

use crate::check::{check_addr_port, check_host_port};
use crate::{Config, ConfigError, Role, UNIX_PREFIX, target};

/// `listen` of an exit whose one carrier is its standard input and output.
pub const LISTEN_STDIO: &str = "stdio";

/// Most words of `connectCommand`.
pub const COMMAND_WORDS_MAX: usize = 256;

/// Whether one of the addresses in a field, with commas between them, is that of a Unix socket.
pub(crate) fn has_unix(field: Option<&str>) -> bool {
    let mut addresses = field.into_iter().flat_map(|field| field.split(','));
    addresses.any(|address| address.starts_with(UNIX_PREFIX))
}

/// Where an exit is dialled: `host:port`, or `unix:/path`.
pub(crate) fn check_connect(field: &str, text: &str) -> Result<(), ConfigError> {
    match text.strip_prefix(UNIX_PREFIX) {
        Some(path) => check_unix(field, path),
        None => check_host_port(field, text),
    }
}

/// Where an exit accepts carriers: `addr:port`, `unix:/path` or [`LISTEN_STDIO`].
pub(crate) fn check_listen(config: &Config, listen: &str) -> Result<(), ConfigError> {
    if listen == LISTEN_STDIO {
        return match config.workers {
            None | Some(1) => Ok(()),
            Some(_) => Err(ConfigError::field(
                "workers",
                "listen: stdio is one carrier, for which there is one worker",
            )),
        };
    }
    match listen.strip_prefix(UNIX_PREFIX) {
        Some(path) => check_unix("listen", path),
        None => check_addr_port("listen", listen),
    }
}

/// An entry has `connect` or `connectCommand`, and nobody else has the latter.
pub(crate) fn check_command(config: &Config) -> Result<(), ConfigError> {
    let words = &config.connect_command;
    if words.is_empty() {
        return Ok(());
    }
    let problem = if config.role != Role::Entry {
        "only an entry starts a command for its carriers".to_owned()
    } else if words[0].is_empty() {
        "has no program: its first word is empty".to_owned()
    } else if words.len() > COMMAND_WORDS_MAX {
        format!("{} words, at most {COMMAND_WORDS_MAX}", words.len())
    } else if words.iter().any(|word| word.contains('\0')) {
        "has a zero byte".to_owned()
    } else if config.connect.is_some() || config.connect_fallback.is_some() {
        "is there instead of connect and connectFallback".to_owned()
    } else if config.rendezvous.is_some() {
        "is not supported for a rendezvous".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError::field("connectCommand", problem))
}

fn check_unix(field: &str, path: &str) -> Result<(), ConfigError> {
    match target::unix_path_problem(path) {
        Some(problem) => Err(ConfigError::field(field, problem)),
        None => Ok(()),
    }
}

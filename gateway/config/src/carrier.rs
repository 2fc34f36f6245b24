//! Carriers that need no TCP port: a Unix socket, standard input and output, or the pipes of a
//! command.

use crate::check::{check_addr_port, check_host_port};
use crate::{Config, ConfigError, Role, UNIX_PREFIX, target};

/// Value of `listen` for an exit whose only carrier is its standard input and output.
pub const LISTEN_STDIO: &str = "stdio";

/// Maximum number of elements of `connect[].command`, which are the program and its arguments.
pub const COMMAND_WORDS_MAX: usize = 256;

/// Whether the address in `field` is a Unix socket.
pub(crate) fn is_unix(field: Option<&str>) -> bool {
    field.is_some_and(|address| address.starts_with(UNIX_PREFIX))
}

/// Checks the address of an exit: `host:port` or `unix:/path`.
pub(crate) fn check_connect(field: &str, text: &str) -> Result<(), ConfigError> {
    match text.strip_prefix(UNIX_PREFIX) {
        Some(path) => check_unix(field, path),
        None => check_host_port(field, text),
    }
}

/// Checks where an exit accepts carriers: `addr:port`, `unix:/path` or [`LISTEN_STDIO`].
pub(crate) fn check_listen(config: &Config, listen: &str) -> Result<(), ConfigError> {
    if listen == LISTEN_STDIO {
        return match config.workers {
            None | Some(1) => Ok(()),
            Some(_) => Err(ConfigError::field(
                "workers",
                "must be 1 with listen: stdio, because standard input and output are a single carrier",
            )),
        };
    }
    match listen.strip_prefix(UNIX_PREFIX) {
        Some(path) => check_unix("listen", path),
        None => check_addr_port("listen", listen),
    }
}

/// Whether this build starts commands for carriers. The images' muxgate is a build without the
/// feature (images/build).
pub(crate) const STARTS_COMMANDS: bool = cfg!(feature = "connect-command");

/// Checks the command of an exit of `connect`. Only an entry may have a command, and then no other
/// exit. A build that starts no commands refuses the field.
pub(crate) fn check_command(
    config: &Config,
    exit: usize,
    starts_commands: bool,
) -> Result<(), ConfigError> {
    let words = &config.connect[exit].command;
    if words.is_empty() {
        return Ok(());
    }
    let problem = if !starts_commands {
        "this build of muxgate starts no programs, because the feature connect-command is off: \
         remove the field and set address"
            .to_owned()
    } else if config.role != Role::Entry {
        "only an entry starts a command for its carriers: remove the field".to_owned()
    } else if words[0].is_empty() {
        "has no program: its first word is empty".to_owned()
    } else if words.len() > COMMAND_WORDS_MAX {
        format!(
            "has {} words, at most {COMMAND_WORDS_MAX} are allowed",
            words.len()
        )
    } else if words.iter().any(|word| word.contains('\0')) {
        "has a zero byte".to_owned()
    } else if config.connect.len() > 1 {
        "is the only way to an exit: remove the other exits".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError::field(
        format!("connect[{exit}].command"),
        problem,
    ))
}

fn check_unix(field: &str, path: &str) -> Result<(), ConfigError> {
    ConfigError::unless_none(target::unix_path_problem(path).map(|problem| (field, problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_commands_refuses_the_field() {
        let config =
            "security: {mode: None}\nrole: Entry\nconnect: [{name: far, command: [sh, -c, id]}]\n";
        let config = Config::from_yaml(config).unwrap();
        let error = check_command(&config, 0, false).unwrap_err().to_string();
        let sentence = "connect[0].command: this build of muxgate starts no programs";
        assert!(error.contains(sentence), "{error}");
    }

    #[test]
    fn a_build_with_commands_accepts_the_field_of_an_entry() {
        let config =
            "security: {mode: None}\nrole: Entry\nconnect: [{name: far, command: [ssh, far]}]\n";
        let config = Config::from_yaml(config).unwrap();
        assert_eq!(
            config.command(),
            Some(&["ssh".to_owned(), "far".to_owned()][..])
        );
    }
}

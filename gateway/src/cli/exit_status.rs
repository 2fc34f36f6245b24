//! The exit statuses of `muxgate`.

/// The gateway ended in order, or the command succeeded.
pub const SUCCEEDED: u8 = 0;
/// The gateway or the command failed.
pub const FAILED: u8 = 1;
/// The command line or the configuration file cannot be used. clap ends with the same status.
pub const UNUSABLE: u8 = 2;

/// Exit statuses with their meanings, for the manual.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (
        SUCCEEDED,
        "the gateway ended in order, or the command succeeded",
    ),
    (
        FAILED,
        "the gateway or the command failed; standard error has the cause",
    ),
    (
        UNUSABLE,
        "the command line or the configuration file cannot be used",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_all_exit_statuses() {
        muxtunnel_testkit::exit_statuses::assert_documented("muxgate", EXIT_STATUSES);
    }
}

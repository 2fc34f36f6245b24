//! Flags for the format of the log.

use clap::Args;

use crate::base::log::Format;

/// Flags of each subcommand that runs a gateway.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Format of the log on stderr. RUST_LOG selects the lines.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(super) log_format: Format,
}

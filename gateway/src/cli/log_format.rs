//! The form of the log, as it is typed.

use clap::{Args, ValueEnum};

use crate::base::log::Format;

/// Of each subcommand that runs a gateway.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Form of the log on stderr. RUST_LOG selects its lines.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: FormatArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    /// Lines for people.
    Text,
    /// A JSON object on each line, for log collectors.
    Json,
}

impl LogArgs {
    pub(super) const fn format(&self) -> Format {
        match self.log_format {
            FormatArg::Text => Format::Text,
            FormatArg::Json => Format::Json,
        }
    }
}

//! Flags for the format of the log.

use clap::{Args, ValueEnum};

use crate::base::log::Format;

/// Flags of each subcommand that runs a gateway.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Format of the log on stderr. RUST_LOG selects the lines.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: FormatArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    /// Lines of text.
    Text,
    /// One JSON object per line, for log collectors.
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

//! `muxgate check`: checks this host, or checks whether a gateway would accept a configuration file.
//! The command runs no gateway.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;

use super::host;
use crate::process::{Failure, Source, load};

/// Arguments of `muxgate check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Check this configuration file instead of the host. The command does not read the keys,
    /// certificates and other files to which the configuration refers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Check {
    /// Validates the file, or checks the host; returns a summary.
    ///
    /// # Errors
    /// [`Failure::Config`] with the position of the first error of the file and its remedy, or
    /// [`Failure::Runtime`] with the commands that raise the buffers of the host.
    pub(super) fn run(self) -> Result<String, Failure> {
        let Some(file) = self.config else {
            return host::check().map_err(Failure::Runtime);
        };
        let path = file.display().to_string();
        match load(&Source::File(file)) {
            Ok((config, _)) => Ok(summary(&path, &config)),
            Err(error) => {
                let remedy = Code::ConfigInvalid.remedy();
                Err(Failure::Config(anyhow!("{error:#}\n  fix: {remedy}")))
            }
        }
    }
}

fn summary(path: &str, config: &Config) -> String {
    let (role, protocol) = (config.role, config.protocol.as_str());
    let role = format!("{role:?}").to_lowercase();
    let (ports, rules) = (config.listeners().len(), config.allow.len());
    format!("{path}: valid; {role}, protocol {protocol}, ports: {ports}, allow rules: {rules}")
}

//! `muxgate check`: checks whether a gateway would accept a configuration file, without running a
//! gateway.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;

use crate::process::{Failure, Source, load};

/// Arguments of `muxgate check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration file. The command does not read the keys, certificates and other files to
    /// which the configuration refers.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Check {
    /// Reads the file and validates it; returns a summary.
    ///
    /// # Errors
    /// [`Failure::Config`] with the position of the first error and its remedy.
    pub fn run(self) -> Result<String, Failure> {
        let path = self.config.display().to_string();
        match load(&Source::File(self.config)) {
            Ok((config, _)) => Ok(summary(&path, &config)),
            Err(error) => {
                let remedy = Code::ConfigInvalid.remedy();
                Err(Failure::Config(anyhow!("{error:#}\n  fix: {remedy}")))
            }
        }
    }
}

fn summary(path: &str, config: &Config) -> String {
    let (role, protocol) = (config.role, config.protocol.can().name);
    let role = format!("{role:?}").to_lowercase();
    let (ports, rules) = (config.listeners().len(), config.allow.len());
    format!("{path}: valid; {role}, protocol {protocol}, ports: {ports}, allow rules: {rules}")
}

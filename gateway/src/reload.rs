//! Follows the configuration file.
//!
//! Reads it once a second: a ConfigMap's update replaces a symbolic link above the file, which file
//! notifications miss or report in pieces, and a read of a few kilobytes costs nothing. The file is
//! at most [`FILE_BYTES_MAX`]. A file that cannot be used changes nothing and is reported.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;
use tokio::sync::watch;

use crate::telemetry::Telemetry;

/// Largest configuration file: a ConfigMap's limit.
const FILE_BYTES_MAX: u64 = 1 << 20;
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads the file's text.
pub(crate) fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "larger than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(text)
}

/// Sends each usable change to the worker, for ever.
pub(crate) async fn follow(
    path: &Path,
    config: &watch::Sender<Arc<Config>>,
    telemetry: &Telemetry,
) {
    let mut seen = read(path).ok();
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let text = read(path);
        if text.as_ref().ok() == seen.as_ref() {
            continue;
        }
        seen = text.as_ref().ok().cloned();
        let running = Arc::clone(&config.borrow());
        match text
            .map_err(|error| format!("{}: {error}", Code::ConfigInvalid))
            .and_then(|text| judge(&text, &running).map(|new| (new, text)))
        {
            Ok((new, text)) => {
                tracing::info!(
                    forwards = new.forwards.len(),
                    allow = new.allowed().count(),
                    deny = new.policy.deny.len(),
                    "Configuration taken over"
                );
                telemetry.config_taken(new.clone(), &text);
                config.send_replace(Arc::new(new));
            }
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "Configuration not taken over; the last good one stays");
                telemetry.config_refused(error);
            }
        }
    }
}

/// The new configuration, or why it cannot replace the running one.
fn judge(text: &str, running: &Config) -> Result<Config, String> {
    let new =
        Config::from_yaml(text).map_err(|error| format!("{}: {error}", Code::ConfigInvalid))?;
    if new.reloadable_from(running) {
        Ok(new)
    } else {
        Err(format!(
            "{}: only forwards, allow, policy, allowListen, offer and timeouts can change without a restart",
            Code::ConfigNeedsRestart
        ))
    }
}

//! Watches the configuration file and applies its changes.
//!
//! The gateway reads the file once per second. File notifications are not reliable: a ConfigMap
//! update replaces a symbolic link above the file, and notifications miss such an update or report
//! a part of it. Reading a few kilobytes is cheap. SIGHUP makes the gateway read and report the file
//! at once, even if it has not changed. The file has at most [`FILE_BYTES_MAX`]. An
//! invalid file is reported and has no other effect. If a new file also changes fields that require
//! a restart, the gateway applies the other fields at once, so that a policy change takes effect
//! without delay.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::status::FileUse;
use muxtunnel_gateway_config::{Config, Reloadable};
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;

use super::signals::Signals;
use crate::base::telemetry::Telemetry;

/// Maximum size of the configuration file: the limit of a ConfigMap.
const FILE_BYTES_MAX: u64 = 1 << 20;
const INTERVAL: Duration = Duration::from_secs(1);

/// Reads the text of the file.
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

/// Sends each valid change of the file to the workers, until the process ends. `text` is the text
/// from which `running` was read. The file may have changed since, for example if a ConfigMap is
/// updated while its pod starts.
pub(crate) async fn follow(
    path: &Path,
    mut running: Config,
    text: String,
    reloadable: &watch::Sender<Arc<Reloadable>>,
    telemetry: &Telemetry,
) {
    let state = |error| telemetry.files.set(FileUse::Configuration, path, error);
    state(None);
    let mut seen = Some(text);
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut hangups = Signals::install(SignalKind::hangup());
    loop {
        let is_requested = tokio::select! {
            _ = interval.tick() => false,
            () = hangups.next() => true,
        };
        let text = read(path);
        if !is_requested && text.as_ref().ok() == seen.as_ref() {
            continue;
        }
        seen = text.as_ref().ok().cloned();
        match text
            .map_err(|error| format!("{}: {error}", Code::ConfigInvalid))
            .and_then(|text| reloaded(&text, &running).map(|new| (new, text)))
        {
            Ok((Reloaded { config: new, rest }, text)) => {
                tracing::info!(
                    ports = new.listeners().len(),
                    allow = new.allow.len(),
                    deny = new.deny.len(),
                    "Configuration reloaded"
                );
                match rest {
                    None => {
                        state(None);
                        telemetry.in_force().taken(&text, &new.trusted());
                    }
                    Some(rest) => {
                        tracing::error!(file = %path.display(), error = %rest, "A part of the new configuration is not applied");
                        state(Some(rest.clone()));
                        telemetry.in_force().taken_in_part(rest);
                    }
                }
                telemetry.peers.set(&new);
                reloadable.send_replace(Arc::new(new.reloadable()));
                running = new;
            }
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "New configuration rejected; the last valid configuration remains in force");
                state(Some(error.clone()));
                telemetry.in_force().refused(error);
            }
        }
    }
}

/// The result of a changed file.
struct Reloaded {
    config: Config,
    /// Why a part of the file is not in force; `None`: the whole file is in force.
    rest: Option<String>,
}

/// Applies the reloadable fields of `text` to `running`.
///
/// # Errors
/// The text is invalid, or its reloadable fields conflict with the static fields in force.
fn reloaded(text: &str, running: &Config) -> Result<Reloaded, String> {
    let new =
        Config::from_yaml(text).map_err(|error| format!("{}: {error}", Code::ConfigInvalid))?;
    let code = Code::ConfigNeedsRestart;
    let fields = running.needing_restart(&new).join(", ");
    let config = running.reloaded(&new);
    config
        .check()
        .map_err(|error| format!("{code}: restart the gateway to change {fields}: {error}"))?;
    let rest = (!fields.is_empty()).then(|| {
        format!("{code}: restart the gateway to change {fields}; the other fields are in force")
    });
    Ok(Reloaded { config, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_while_the_process_starts_is_taken_over() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let running = Config::from_yaml(EXIT).unwrap();
        let telemetry = Telemetry::new(&running, EXIT, 1, None);
        let (sender, mut receiver) = watch::channel(Arc::new(running.reloadable()));
        let text = format!("{EXIT}deny: [{{host: '*'}}]\n");
        std::fs::write(file.path(), &text).unwrap();
        tokio::select! {
            () = follow(file.path(), running, EXIT.to_owned(), &sender, &telemetry) => {}
            changed = tokio::time::timeout(3 * INTERVAL, receiver.changed()) => changed.unwrap().unwrap(),
        }
        assert_eq!(receiver.borrow().policy.deny.len(), 1);
        let hash = muxtunnel_gateway_config::config_hash(&text);
        assert_eq!(telemetry.status().config_hash, hash);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_counts_as_in_force_when_its_credentials_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let peers = |names: &str, more: &str| {
            format!(
                "role: Exit\nsecurity: {{mode: Certificates, certificate: /c, key: /k, ca: /a, peers: [{names}]}}\n\
                 listen: 0.0.0.0:64000\n{more}"
            )
        };
        let first = peers("a", "");
        let running = Config::from_yaml(&first).unwrap();
        let telemetry = Telemetry::new(&running, &first, 1, None);
        let (sender, mut receiver) = watch::channel(Arc::new(running.reloadable()));
        let hash = || telemetry.status().config_hash;
        let of = |text: &str| muxtunnel_gateway_config::config_hash(text);
        let follow = follow(file.path(), running, first.clone(), &sender, &telemetry);
        let steps = async {
            let mut write = async |text: &str| {
                std::fs::write(file.path(), text).unwrap();
                receiver.changed().await.unwrap();
                Arc::clone(&receiver.borrow_and_update()).security.clone()
            };
            let second = peers("a, b", "");
            let of_second = write(&second).await;
            assert_eq!(hash(), of(&first));
            // A change of other fields does not wait less.
            let third = peers("a, b", "deny: [{host: '*'}]\n");
            write(&third).await;
            assert_eq!(hash(), of(&first));
            telemetry.in_force().credentials_taken(&of_second);
            assert_eq!(hash(), of(&third));
            // With the credentials in force, other fields do not wait.
            write(&second).await;
            assert_eq!(hash(), of(&second));
            // The credentials of an older version do not count for a newer one.
            let of_third = write(&peers("c", "")).await;
            write(&peers("d", "")).await;
            telemetry.in_force().credentials_taken(&of_third);
            assert_eq!(hash(), of(&second));
        };
        tokio::select! {
            () = follow => {}
            done = tokio::time::timeout(60 * INTERVAL, steps) => done.unwrap(),
        }
    }

    const EXIT: &str = "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\n";

    #[test]
    fn what_can_be_taken_over_is_and_the_rest_is_named() {
        let running = Config::from_yaml(EXIT).unwrap();
        let text = format!("{EXIT}deny: [{{host: '*'}}]\nworkers: 3\nresume: false\n");
        let Reloaded { config, rest } = reloaded(&text, &running).unwrap();
        assert_eq!((config.deny.len(), config.workers), (1, None));
        let rest = rest.unwrap();
        assert!(
            rest.contains("MT0102") && rest.contains("change workers, resume;"),
            "{rest}"
        );
        // All fields of this text that require a restart are in force, so no field is reported.
        let again = reloaded(EXIT, &config).unwrap();
        assert!(again.config.deny.is_empty() && again.rest.is_none());
    }

    #[test]
    fn what_does_not_go_with_the_running_rest_is_refused_whole() {
        let running = Config::from_yaml(&format!("{EXIT}protocol: JMUX\n")).unwrap();
        let text = format!("{EXIT}allowListen: ['8080']\n");
        let refused = reloaded(&text, &running).err().unwrap();
        assert!(
            refused.contains("protocol") && refused.contains("allowListen"),
            "{refused}"
        );
    }
}

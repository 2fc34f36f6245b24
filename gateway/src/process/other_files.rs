//! The state of the files that workers read when they need them: the users of forwards, and the
//! files of the system's resolver.
//!
//! Workers read a users file again when a client authenticates. This module reads the files once per
//! second, so that a file without a client has a state, too.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Reloadable;
use muxtunnel_gateway_config::status::FileUse;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::base::file_states::FileStates;
use crate::ingress::listener::CheckedUsers;
use crate::net::dns::RESOLVER_FILES;

const INTERVAL: Duration = Duration::from_secs(1);

/// Reads the files of the configuration in force; never returns.
pub(super) async fn follow(reloadable: watch::Receiver<Arc<Reloadable>>, states: &FileStates) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The workers share the users that this module has parsed.
    let mut in_use = Vec::new();
    loop {
        interval.tick().await;
        let in_force = Arc::clone(&reloadable.borrow());
        let (users, checked) = users(&in_force);
        states.replace(FileUse::Users, users);
        states.replace(FileUse::Resolver, RESOLVER_FILES.map(resolver_file));
        drop(std::mem::replace(&mut in_use, checked));
    }
}

type State = (PathBuf, Option<String>);

/// The states of the users files, and the users of the usable files.
fn users(in_force: &Reloadable) -> (Vec<State>, Vec<CheckedUsers>) {
    let (mut states, mut checked) = (Vec::new(), Vec::new());
    for auth in in_force
        .listeners
        .iter()
        .filter_map(|one| one.auth.as_ref())
    {
        let path = PathBuf::from(auth.path());
        match CheckedUsers::of(auth) {
            Ok(users) => {
                states.push((path, None));
                checked.push(users);
            }
            Err(error) => {
                let error = format!("{}: {error}", Code::CredentialsInvalid);
                states.push((path, Some(error)));
            }
        }
    }
    (states, checked)
}

/// A file that does not exist counts as empty.
fn resolver_file(path: &str) -> State {
    let error = std::fs::File::open(path).err();
    let error = error.filter(|error| error.kind() != ErrorKind::NotFound);
    let error = error.map(|error| format!("the file counts as empty: {error}"));
    (path.into(), error)
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::Config;
    use muxtunnel_gateway_config::status::File;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_users_file_has_a_state_without_a_client() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        std::fs::write(&file, "anna:secret-of-anna\n").unwrap();
        let yaml = |ports: &str| {
            let text = format!(
                "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:1\n{ports}\n"
            );
            Arc::new(Config::from_yaml(&text).unwrap().reloadable())
        };
        let asks = format!(
            "proxies: [{{name: any, listen: '127.0.0.1:1', protocol: SOCKS5, usersFile: '{}'}}]",
            file.display()
        );
        let (sender, receiver) = watch::channel(yaml(&asks));
        let states = FileStates::default();
        let state = async || {
            let follow = follow(receiver.clone(), &states);
            let _ = tokio::time::timeout(INTERVAL / 2, follow).await;
            let mut files = states.status().into_iter();
            files.find(|file| file.purpose == FileUse::Users)
        };
        let expected = File {
            path: file.display().to_string(),
            purpose: FileUse::Users,
            error: None,
        };
        assert_eq!(state().await, Some(expected.clone()));
        std::fs::write(&file, "anna\n").unwrap();
        let error = state().await.unwrap().error.unwrap();
        let place = format!("MT0231: {}:1: ", file.display());
        assert!(error.starts_with(&place), "{error}");
        std::fs::remove_file(&file).unwrap();
        let error = state().await.unwrap().error.unwrap();
        assert!(error.contains("cannot read"), "{error}");
        std::fs::write(&file, "anna:secret-of-anna\n").unwrap();
        assert_eq!(state().await, Some(expected));
        // A forward that the configuration no longer has leaves no state behind.
        sender.send_replace(yaml(
            "forwards: [{name: web, listen: '127.0.0.1:1', targets: [{host: a, port: 1}]}]",
        ));
        assert_eq!(state().await, None);
    }
}

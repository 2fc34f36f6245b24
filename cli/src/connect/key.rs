//! The key of this host: a file for each MuxPeer, in the folder of the user's configuration.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use muxtunnel_gateway_config::{GatewayKey, Role};
use rustix::fs::{FlockOperation, flock};

use super::gate::Gate;
use crate::cluster::Cluster;

/// Maximum length of the name of a MuxPeer.
const NAME_MAX: usize = 63;
/// Permissions of other users than the owner.
const OTHERS: u32 = 0o077;

/// A key, which no other process of this command uses.
pub(super) struct Key {
    pub(super) file: PathBuf,
    pub(super) public: GatewayKey,
    /// The lock ends with the file's descriptor.
    _lock: File,
}

/// The key of a MuxPeer. Creates the key if it does not exist.
///
/// # Errors
/// The file cannot be used, or another process uses it.
pub(super) async fn of(gate: &Gate, cluster: &Cluster, name: &str) -> Result<Key> {
    let folder = configuration(|name| std::env::var_os(name).map(PathBuf::from))?;
    let folder = folder
        .join("muxtunnel/connect")
        .join(plain(&cluster.server))
        .join(plain(&cluster.namespace));
    let cannot = || format!("cannot create the folder {}", folder.display());
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.with_context(cannot)?;
    let file = folder.join(format!("{}.key", plain(name)));
    let keygen = OsStr::new("keygen");
    let said = match file.exists() {
        true => {
            gate.ask(&[keygen, OsStr::new("--show"), file.as_os_str()])
                .await?
        }
        false => gate.ask(&[keygen, file.as_os_str()]).await?,
    };
    let public = public(&said)?;
    let lock = lock(&file, name)?;
    Ok(Key {
        file,
        public,
        _lock: lock,
    })
}

/// Opens the file, if only its owner can read it, and locks it.
fn lock(file: &Path, name: &str) -> Result<File> {
    let place = file.display();
    let opened = File::open(file).with_context(|| format!("cannot read {place}"))?;
    let mode = opened.metadata()?.permissions().mode();
    if mode & OTHERS != 0 {
        bail!("{place} has a private key, and other users can read it: chmod 600 {place}");
    }
    let locked = flock(&opened, FlockOperation::NonBlockingLockExclusive);
    locked.map_err(|_| {
        anyhow!("another `connect` of this host uses the MuxPeer {name}: end it, or choose another name with --name")
    })?;
    Ok(opened)
}

/// The entry's key in the output of `muxgate keygen`.
fn public(said: &str) -> Result<GatewayKey> {
    let mut keys = said.lines().map(str::trim);
    let key = keys.find_map(|line| GatewayKey::of_role(line, Role::Entry).ok());
    key.context("`muxgate keygen` has not printed a key of an entry (mte1...): use the muxgate of this version")
}

/// The folder of the user's configuration (XDG Base Directory Specification).
fn configuration(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let xdg = variable("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
    let home = || {
        Some(
            variable("HOME")
                .filter(|folder| folder.is_absolute())?
                .join(".config"),
        )
    };
    xdg.or_else(home)
        .context("there is no folder for the key: set XDG_CONFIG_HOME or HOME")
}

/// The text as the name of a file.
fn plain(text: &str) -> String {
    let letter = |letter: char| match letter {
        letter if letter.is_ascii_alphanumeric() || "-.".contains(letter) => letter,
        _ => '_',
    };
    text.chars().map(letter).collect()
}

/// `muxtunnel-connect-USER-HOST`.
pub(super) fn peer_name() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let system = rustix::system::uname();
    name_of(
        &user.unwrap_or_default(),
        &system.nodename().to_string_lossy(),
    )
}

fn name_of(user: &str, host: &str) -> String {
    let host = host.split('.').next().unwrap_or_default();
    let text = format!("{user}-{host}").to_ascii_lowercase();
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = ["muxtunnel", "connect"]
        .into_iter()
        .chain(words.filter(|word| !word.is_empty()))
        .collect();
    let mut name = words.join("-");
    name.truncate(NAME_MAX);
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_peer_has_the_user_and_the_host() {
        for (user, host, wanted) in [
            ("ann", "laptop", "muxtunnel-connect-ann-laptop"),
            (
                "Ann.B@corp",
                "Laptop_7.example.com",
                "muxtunnel-connect-ann-b-corp-laptop-7",
            ),
            ("", "", "muxtunnel-connect"),
        ] {
            assert_eq!(name_of(user, host), wanted);
        }
        assert!(name_of(&"a".repeat(90), "b").len() <= NAME_MAX);
    }

    #[test]
    fn the_folder_is_that_of_the_users_configuration() {
        let folder = |xdg: Option<&str>, home: Option<&str>| {
            configuration(|name| {
                let value = if name == "HOME" { home } else { xdg };
                value.map(PathBuf::from)
            })
        };
        assert_eq!(folder(Some("/x"), Some("/h")).unwrap(), Path::new("/x"));
        for xdg in [None, Some(""), Some("relative")] {
            assert_eq!(folder(xdg, Some("/h")).unwrap(), Path::new("/h/.config"));
        }
        assert!(folder(None, None).is_err());
    }

    #[test]
    fn a_key_is_used_once_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.key");
        std::fs::write(&file, "key").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(0o640);
        assert!(
            lock(&file, "a")
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
        mode(0o600);
        let held = lock(&file, "a").unwrap();
        assert!(lock(&file, "a").unwrap_err().to_string().contains("--name"));
        drop(held);
        assert!(lock(&file, "a").is_ok());
    }
}

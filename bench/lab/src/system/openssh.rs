//! Forwards of OpenSSH, with a separate `sshd` and keys that are created for the run. `sshd` runs
//! at the exit for `ssh -L` and `ssh -D`, at the entry for `ssh -R`.
//!
//! OpenSSH always encrypts. The lab uses `aes128-gcm@openssh.com`, the cipher that needs the least
//! CPU time on processors with AES instructions. Compression and all features that a forward does
//! not need are off.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{CARRIER_PORT, Launch, PROXY_PORT, Service, Setup, entry_at, target_at};
use crate::{
    process::find,
    topology::{Place, at},
};

const CIPHER: &str = "aes128-gcm@openssh.com";
/// `sshd` needs this folder for its privilege separation. Distributions create it at boot.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// `sshd` executes itself again for each connection, so it needs an absolute path.
pub(super) const SSHD: &str = "/usr/sbin/sshd";

/// The kind of forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forwards {
    /// Forwards with `ssh -L`.
    Local,
    /// Forwards with `ssh -D`, and also with `-L`.
    Dynamic,
    /// Forwards with `ssh -R`.
    Remote,
}

pub(super) fn launches(setup: &Setup<'_>, forwards: Forwards) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let (server_at, client_at, carrier) = match forwards {
        Forwards::Local | Forwards::Dynamic => (Place::Exit, Place::Entry, addresses.carrier_exit),
        Forwards::Remote => (Place::Entry, Place::Exit, addresses.carrier_entry),
    };
    let folder = setup.folder.display();
    find(Path::new(SSHD))?;
    find(Path::new("ssh"))?;
    let key = setup.folder.join("openssh-key");
    if !key.is_file() {
        make_key(&key)?;
    }
    let key = key.display();
    let config = format!(
        "Port {CARRIER_PORT}\n\
         ListenAddress {carrier}\n\
         HostKey {key}\n\
         AuthorizedKeysFile {key}.pub\n\
         PidFile none\n\
         StrictModes no\n\
         UsePAM no\n\
         PermitRootLogin prohibit-password\n\
         AllowTcpForwarding yes\n\
         GatewayPorts clientspecified\n\
         Compression no\n\
         UseDNS no\n\
         Ciphers {CIPHER}\n"
    );
    let config = setup.file("openssh-sshd.conf", &config)?;
    fs::create_dir_all(PRIVILEGE_SEPARATION)
        .with_context(|| format!("cannot create {PRIVILEGE_SEPARATION}"))?;
    let flag = match forwards {
        Forwards::Remote => "-R",
        _ => "-L",
    };
    let mut flags = Service::ALL
        .map(|service| {
            let (entry, target) = (
                entry_at(addresses.entry, service),
                target_at(addresses.target, service),
            );
            format!(" {flag} {entry}:{target}")
        })
        .concat();
    if forwards == Forwards::Dynamic {
        flags.push_str(&format!(" -D {}", at(addresses.entry, PROXY_PORT)));
    }
    let client = format!(
        "ssh -N -T -F none -i {key} -c {CIPHER} -o Compression=no -o ExitOnForwardFailure=yes \
         -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/openssh-hosts \
         -p {CARRIER_PORT}{flags} root@{carrier}"
    );
    Ok(vec![
        Launch::new(server_at, &format!("{SSHD} -D -e -f {config}")).listening(CARRIER_PORT),
        Launch::new(client_at, &client),
    ])
}

/// Creates a key that serves as the host's key and as the user's key.
pub(super) fn make_key(path: &Path) -> Result<()> {
    let output = Command::new(find(Path::new("ssh-keygen"))?)
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .output()
        .context("cannot start ssh-keygen")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ssh-keygen: {}", said.trim());
    Ok(())
}

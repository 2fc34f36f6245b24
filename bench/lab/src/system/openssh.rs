//! A forward of OpenSSH (`ssh -L`): an `sshd` of its own on the exit, with keys made for the run.
//!
//! It always encrypts; `aes128-gcm@openssh.com` is the cipher with the least work where the processor
//! has AES instructions. Compression is off, and so is everything that a forward does not need.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::{process::find, topology::Place};

const CIPHER: &str = "aes128-gcm@openssh.com";
/// `sshd` wants this folder for its separation of privileges; distributions make it at boot.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// `sshd` starts itself anew for each connection, so it wants its whole path.
pub(super) const SSHD: &str = "/usr/sbin/sshd";

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
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
         ListenAddress {}\n\
         HostKey {key}\n\
         AuthorizedKeysFile {key}.pub\n\
         PidFile none\n\
         StrictModes no\n\
         UsePAM no\n\
         PermitRootLogin prohibit-password\n\
         AllowTcpForwarding local\n\
         Compression no\n\
         UseDNS no\n\
         Ciphers {CIPHER}\n",
        addresses.carrier_exit
    );
    let config = setup.file("openssh-sshd.conf", &config)?;
    fs::create_dir_all(PRIVILEGE_SEPARATION)
        .with_context(|| format!("making {PRIVILEGE_SEPARATION}"))?;
    let forwards = Service::ALL.map(|service| {
        let (entry, target) = (
            entry_at(addresses.entry, service),
            target_at(addresses.target, service),
        );
        format!(" -L {entry}:{target}")
    });
    let entry = format!(
        "ssh -N -T -F none -i {key} -c {CIPHER} -o Compression=no -o ExitOnForwardFailure=yes \
         -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/openssh-hosts \
         -p {CARRIER_PORT}{} root@{}",
        forwards.concat(),
        addresses.carrier_exit
    );
    Ok(vec![
        Launch::new(Place::Exit, &format!("{SSHD} -D -e -f {config}")).listening(CARRIER_PORT),
        Launch::new(Place::Entry, &entry),
    ])
}

/// One key serves as the host's and the user's.
fn make_key(path: &Path) -> Result<()> {
    let output = Command::new(find(Path::new("ssh-keygen"))?)
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .output()
        .context("starting ssh-keygen")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ssh-keygen: {}", said.trim());
    Ok(())
}

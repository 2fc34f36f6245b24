//! WireGuard in user space: two processes of wireguard-go, with keys of `wg`. wireguard-go has no
//! settings of its data path.
//!
//! `wg` finds a process by a socket in `/var/run/wireguard`, whose name depends only on the
//! interface's name. So each end has its own file system at `/var/run`. A shell starts wireguard-go
//! with `exec`, so the process id stays the same and the process ends with muxlab.

use std::{
    io::Write,
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::{CARRIER_PORT, Interface, Launch, Setup};
use crate::{
    process::find,
    topology::{Place, TUNNEL, at},
};

/// The program, from the Debian package wireguard-tools.
const TOOL: &str = "wg";

/// The default MTU of wireguard-go, which fits into packets of 1,500 bytes.
const INTERFACE: Interface = Interface {
    mtu: 1420,
    queue_packets: None,
    queues: 1,
};

/// `program`: the build of wireguard-go.
pub(super) fn is_found(program: &str) -> bool {
    [program, TOOL]
        .map(Path::new)
        .into_iter()
        .all(|name| find(name).is_ok())
}

/// `program`: the build of wireguard-go.
pub(super) fn launches(setup: &Setup<'_>, program: &str) -> Result<Vec<Launch>> {
    let program = find(Path::new(program))?.display().to_string();
    let (entry, exit) = (Keys::generate()?, Keys::generate()?);
    let [client, server] = TUNNEL;
    let addresses = &setup.addresses;
    let end = |place, name: &str, config: String| {
        let config = setup.file(&format!("wireguard-{name}.conf"), &config)?;
        let script = setup.file(&format!("wireguard-{name}.sh"), &script(&program, &config))?;
        let launch = Launch::new(place, &format!("unshare --mount sh {script}"));
        Ok::<_, anyhow::Error>(launch.making(INTERFACE))
    };
    let (at_exit, at_entry) = (
        config(&exit, &entry, client, addresses.carrier_entry),
        config(&entry, &exit, server, addresses.carrier_exit),
    );
    Ok(vec![
        end(Place::Exit, "exit", at_exit)?,
        end(Place::Entry, "entry", at_entry)?,
    ])
}

/// The configuration of `own` for `peer`, which has the address `inner` in the tunnel and `outer`
/// outside.
fn config(own: &Keys, peer: &Keys, inner: Ipv4Addr, outer: Ipv4Addr) -> String {
    format!(
        "[Interface]\n\
         PrivateKey = {}\n\
         ListenPort = {CARRIER_PORT}\n\
         [Peer]\n\
         PublicKey = {}\n\
         AllowedIPs = {inner}/32\n\
         Endpoint = {}\n",
        own.private,
        peer.public,
        at(outer, CARRIER_PORT)
    )
}

/// The interface's name until wireguard-go is ready, so that the lab does not find and move the
/// interface earlier. If the interface moves earlier, wireguard-go loses it and ends.
const NEW: &str = "lab-new";

/// A script that starts `program`, configures it as soon as it accepts the configuration, and then
/// renames the interface.
fn script(program: &str, config: &str) -> String {
    let device = Interface::NAME;
    format!(
        "set -e\n\
         mount -t tmpfs none /var/run\n\
         (for attempt in $(seq 100); do {TOOL} setconf {NEW} {config} && break; sleep 0.1; done\n\
         ip link set dev {NEW} name {device}) &\n\
         exec {program} --foreground {NEW}\n"
    )
}

/// The keys of one end.
struct Keys {
    private: String,
    public: String,
}

impl Keys {
    fn generate() -> Result<Self> {
        let private = tool("genkey", "")?;
        let public = tool("pubkey", &private)?;
        Ok(Self { private, public })
    }
}

/// Runs `wg` with this input, and returns what it prints.
fn tool(argument: &str, input: &str) -> Result<String> {
    let mut command = Command::new(find(Path::new(TOOL))?);
    command
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start wg")?;
    let stdin = child.stdin.take().context("wg has no input")?;
    write_all(stdin, input).context("cannot write to wg")?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "wg {argument} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Writes `text` and closes the pipe.
fn write_all(mut pipe: impl Write, text: &str) -> std::io::Result<()> {
    pipe.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_own_key_and_knows_the_other_by_its_public_one() {
        let keys = |name: &str| Keys {
            private: format!("{name}-private"),
            public: format!("{name}-public"),
        };
        let [client, server] = TUNNEL;
        let config = config(&keys("entry"), &keys("exit"), server, client);
        assert_eq!(
            config,
            "[Interface]\nPrivateKey = entry-private\nListenPort = 6100\n\
             [Peer]\nPublicKey = exit-public\nAllowedIPs = 10.72.0.2/32\nEndpoint = 10.72.0.1:6100\n"
        );
    }

    /// If the shell stayed the parent of wireguard-go, wireguard-go would continue after muxlab is
    /// killed.
    #[test]
    fn the_shell_that_starts_it_becomes_it() {
        let script = script("/bin/wireguard-go", "/folder/wireguard-exit.conf");
        let last = script.lines().last().unwrap();
        assert_eq!(last, "exec /bin/wireguard-go --foreground lab-new");
    }
}

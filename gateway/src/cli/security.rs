//! Flags for the security of carriers.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use muxtunnel_gateway_config::{
    Certificates, GatewayKey, Peer, PublicKeys, Role, Security, ServerTls, Ssh, SshAlgorithms,
};

/// The mode, and the files that the mode requires.
#[derive(Debug, Args)]
pub(super) struct SecurityArgs {
    /// Security of the carriers. Both ends must have the same mode. [default: keys with --key; ssh
    /// with --protocol ssh; none with --connect-command or --stdio; otherwise required]
    #[arg(long = "security", value_enum)]
    mode: Option<Mode>,
    /// With keys: this end's private key, as `muxgate keygen` writes it. Repeatable once, the newest
    /// key last, while the other ends change to the newer key.
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// An identity that the peer may have (repeatable). With keys, the peer's public key: mtx1... of
    /// an exit, mte1... of an entry. With certificates, a name in the peer's certificate: a DNS name,
    /// an IP address or a URI such as spiffe://example.org/exit. On an entry, the identity of each
    /// exit without peer= in --connect.
    #[arg(long = "peer", value_name = "KEY|NAME")]
    peers: Vec<String>,
    /// With keys on an exit: a file with further peers, one line `[expirationTime="TIME"] KEY [NAME]` for each
    /// peer. If the file changes, the gateway ends the carriers of the peers that it no longer has.
    #[arg(long = "peers", value_name = "FILE")]
    peers_file: Option<PathBuf>,
    /// With certificates, and with tls on an exit: this end's certificate and the intermediate certificates
    /// up to the authority, PEM.
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,
    /// With certificates, and with tls on an exit: the private key of the certificate, PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// With certificates, and with tls on an entry: the authorities that may sign the peer's certificate,
    /// PEM [default with tls: the system's authorities].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// With tls on an entry: the name in the exit's certificate [default: the host of --connect].
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// With tls on an exit: confirm that every client that reaches the exit's port may use all
    /// allowed targets.
    #[arg(long)]
    allow_anonymous: bool,
    #[command(flatten)]
    ssh: SshArgs,
}

/// SSH identities of both ends. The files have OpenSSH's formats.
#[derive(Debug, Default, PartialEq, Eq, Args)]
struct SshArgs {
    /// With ssh on an exit: the exit's private key, Ed25519 or ECDSA, as ssh-keygen writes it
    /// without a passphrase (repeatable).
    #[arg(long, value_name = "FILE")]
    ssh_host_key: Vec<PathBuf>,
    /// With ssh on an exit: the public keys that may log in, in the format of sshd's
    /// authorized_keys.
    #[arg(long, value_name = "FILE")]
    ssh_authorized_keys: Option<PathBuf>,
    /// With ssh on an exit: the authorities whose user certificates may log in, in the format of
    /// sshd's TrustedUserCAKeys.
    #[arg(long, value_name = "FILE")]
    ssh_user_ca: Option<PathBuf>,
    /// With ssh on an exit: the ciphers. With compatible, clients without AES-GCM and
    /// ChaCha20-Poly1305 can use aes256-ctr.
    #[arg(long, value_enum, default_value_t)]
    ssh_algorithms: Algorithms,
    /// With ssh on an entry: the user name for the login.
    #[arg(long, value_name = "NAME")]
    ssh_user: Option<String>,
    /// With ssh on an entry: the entry's private key.
    #[arg(long, value_name = "FILE")]
    ssh_key: Option<PathBuf>,
    /// With ssh on an entry: the certificate of --ssh-key.
    #[arg(long, value_name = "FILE")]
    ssh_certificate: Option<PathBuf>,
    /// With ssh on an entry: the keys that hosts may have, in the format of ssh's known_hosts. A
    /// host that the file does not list is refused.
    #[arg(long, value_name = "FILE")]
    ssh_known_hosts: Option<PathBuf>,
    /// With ssh on an entry: the name of the exit in --ssh-known-hosts [default: the host and port
    /// of --connect].
    #[arg(long, value_name = "NAME")]
    ssh_host_key_alias: Option<String>,
}

impl From<SshArgs> for Ssh {
    fn from(args: SshArgs) -> Self {
        Self {
            host_keys: args.ssh_host_key,
            authorized_keys: args.ssh_authorized_keys,
            trusted_user_ca_keys: args.ssh_user_ca,
            algorithms: match args.ssh_algorithms {
                Algorithms::Default => SshAlgorithms::Default,
                Algorithms::Compatible => SshAlgorithms::Compatible,
            },
            user: args.ssh_user,
            key: args.ssh_key,
            certificate: args.ssh_certificate,
            known_hosts: args.ssh_known_hosts,
            host_key_alias: args.ssh_host_key_alias,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Algorithms {
    /// AES-GCM and ChaCha20-Poly1305.
    #[default]
    Default,
    /// Also aes256-ctr with an encrypt-then-MAC code.
    Compatible,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// No protection: anyone on the path can read and change the traffic.
    None,
    /// TLS 1.3 with a public key of each side, which the other side lists.
    Keys,
    /// TLS 1.3 with a certificate on both sides.
    Certificates,
    /// TLS 1.3 with a certificate only on the exit, as on a web server. The exit accepts every
    /// entry.
    Tls,
    /// SSH's own security, with --protocol ssh.
    Ssh,
}

impl SecurityArgs {
    /// Returns the requested security. `is_piped`: carriers are private pipes, so the mode `none`
    /// is the default. `is_ssh`: the protocol has its own security.
    ///
    /// # Errors
    /// An option is missing, belongs to another mode, or is not a valid key.
    pub(super) fn security(
        self,
        role: Role,
        is_piped: bool,
        is_ssh: bool,
    ) -> Result<Security, String> {
        let mode = match self.mode {
            Some(mode) => mode,
            None if !self.keys.is_empty() => Mode::Keys,
            None if is_ssh => Mode::Ssh,
            None if is_piped => Mode::None,
            None => {
                return Err("--key FILE --peer KEY, or --security keys|certificates|tls|none, is required: `muxgate keygen` creates a key. With \
                     none, anyone on the path can read and change the traffic".to_owned());
            }
        };
        if self.is_stray(mode) {
            return Err("--security: an option does not belong to this mode. Options of keys: --key, --peer, --peers. \
                 Options of certificates: --tls-certificate, --tls-key, --tls-ca, --peer. \
                 Options of tls: --tls-certificate, --tls-key, --tls-ca, --tls-server-name, --allow-anonymous. \
                 Options of ssh: --ssh-...".to_owned());
        }
        Ok(match mode {
            Mode::Tls => {
                let (certificate, key) = match role {
                    Role::Entry => (self.tls_certificate, self.tls_key),
                    Role::Exit | Role::Rendezvous => (
                        Some(needed("tls", "--tls-certificate", self.tls_certificate)?),
                        Some(needed("tls", "--tls-key", self.tls_key)?),
                    ),
                };
                if role == Role::Exit && !self.allow_anonymous {
                    return Err("--security tls does not authenticate entries, so every client that reaches the port \
                         may use all allowed targets; to confirm this, add --allow-anonymous".to_owned());
                }
                Security::ServerTls(ServerTls {
                    certificate,
                    key,
                    allow_anonymous: self.allow_anonymous,
                    ca: self.tls_ca,
                    server_name: self.tls_server_name,
                })
            }
            Mode::None => Security::None {},
            Mode::Keys => Security::PublicKeys(PublicKeys {
                private_key_files: match self.keys.is_empty() {
                    true => return Err("--security keys requires --key FILE".to_owned()),
                    false => self.keys,
                },
                peers: match role {
                    Role::Entry if self.peers_file.is_some() => {
                        return Err("--peers is only for an exit: give --peer KEY".to_owned());
                    }
                    // The exits of `connect` have the keys.
                    Role::Entry => Vec::new(),
                    Role::Exit | Role::Rendezvous => known(&self.peers, self.peers_file.is_some())?,
                },
                peers_file: self.peers_file,
                places: Vec::new(),
            }),
            Mode::Ssh => Security::Ssh(self.ssh.into()),
            Mode::Certificates => Security::Certificates(Certificates {
                certificate: needed("certificates", "--tls-certificate", self.tls_certificate)?,
                key: needed("certificates", "--tls-key", self.tls_key)?,
                ca: needed("certificates", "--tls-ca", self.tls_ca)?,
                peers: {
                    let peers = self.peers.into_iter();
                    peers.map(Peer::with_certificate_name).collect()
                },
            }),
        })
    }
}

impl SecurityArgs {
    /// Takes the identities out, which an entry needs for its exits.
    pub(super) fn take_peers(&mut self) -> Vec<String> {
        std::mem::take(&mut self.peers)
    }

    /// Whether an option belongs to another mode.
    fn is_stray(&self, mode: Mode) -> bool {
        let files = [&self.tls_certificate, &self.tls_key, &self.tls_ca];
        let has_tls = files.iter().any(|file| file.is_some());
        let has_server_tls = self.tls_server_name.is_some() || self.allow_anonymous;
        let has_peers = !self.peers.is_empty();
        let has_ssh = self.ssh != SshArgs::default();
        let has_keys = !self.keys.is_empty() || self.peers_file.is_some();
        match mode {
            Mode::None => has_keys || has_tls || has_server_tls || has_peers || has_ssh,
            Mode::Keys => has_tls || has_server_tls || has_ssh,
            Mode::Certificates => has_keys || has_server_tls || has_ssh,
            Mode::Tls => has_keys || has_peers || has_ssh,
            Mode::Ssh => has_keys || has_tls || has_server_tls || has_peers,
        }
    }
}

fn needed(mode: &str, option: &str, file: Option<PathBuf>) -> Result<PathBuf, String> {
    file.ok_or_else(|| format!("--security {mode} requires {option} FILE"))
}

/// The peers of an exit in mode keys.
fn known(peers: &[String], has_file: bool) -> Result<Vec<Peer>, String> {
    let expected = Role::Entry;
    if peers.is_empty() && !has_file {
        return Err(format!(
            "--key requires --peer {}1..., the public key of the other end, or --peers FILE",
            expected.prefix()
        ));
    }
    let peer = |peer: &String| match GatewayKey::of_role(peer, expected) {
        Ok(key) => Ok(Peer::with_key(key)),
        Err(error) => Err(format!("--peer: {error}")),
    };
    peers.iter().map(peer).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use muxtunnel_gateway_config::key_text;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SecurityArgs,
    }

    fn security(line: &str) -> Result<Security, String> {
        let words = ["muxgate"].into_iter().chain(line.split(' '));
        let args = Line::try_parse_from(words).unwrap().args;
        args.security(Role::Exit, false, false)
    }

    #[test]
    fn flags_mean_what_a_file_would_say() {
        assert_eq!(security("--security none").unwrap(), Security::None {});
        let tls =
            "--security certificates --tls-certificate a --tls-key b --tls-ca c --peer d --peer e";
        let Ok(Security::Certificates(tls)) = security(tls) else {
            panic!("not certificates");
        };
        let names: Vec<_> = tls
            .peers
            .iter()
            .map(|peer| &peer.certificate_names[0])
            .collect();
        assert_eq!(names, ["d", "e"]);
        let tls = "--security tls --tls-certificate a --tls-key b --allow-anonymous";
        let Ok(Security::ServerTls(tls)) = security(tls) else {
            panic!("not TLS");
        };
        assert!(tls.allow_anonymous && tls.certificate.is_some() && tls.ca.is_none());
    }

    #[test]
    fn an_entry_of_tls_needs_nothing_and_a_piped_carrier_no_security() {
        let line = |line: &str| Line::try_parse_from(line.split(' ')).unwrap().args;
        let entry =
            line("muxgate --security tls --tls-server-name a").security(Role::Entry, false, false);
        let Ok(Security::ServerTls(entry)) = entry else {
            panic!("not TLS");
        };
        assert!(!entry.allow_anonymous && entry.server_name.as_deref() == Some("a"));
        assert_eq!(
            line("muxgate").security(Role::Entry, true, false),
            Ok(Security::None {})
        );
    }

    #[test]
    fn a_key_selects_the_mode() {
        let key = |role| key_text(role, &[7; 32]);
        let line = format!("--key a --peer {} --peers b", key(Role::Entry));
        let Ok(Security::PublicKeys(keys)) = security(&line) else {
            panic!("not public keys");
        };
        assert_eq!(keys.peers[0].public_keys[0].to_string(), key(Role::Entry));
        assert_eq!(keys.peers_file, Some("b".into()));
        let line = security(&format!("--security keys {line}"));
        assert_eq!(line, Ok(Security::PublicKeys(keys)));
    }

    #[test]
    fn what_is_missing_or_of_another_mode_is_named() {
        let wrong_role = format!("--key a --peer {}", key_text(Role::Exit, &[7; 32]));
        for (line, problem) in [
            (
                "--security certificates --peer a",
                "requires --tls-certificate FILE",
            ),
            ("--security none --peer a", "does not belong to this mode"),
            ("--security none --tls-ca a", "does not belong to this mode"),
            (
                "--security certificates --peers a",
                "does not belong to this mode",
            ),
            (
                "--security certificates --allow-anonymous",
                "does not belong to this mode",
            ),
            ("--security tls --peer a", "does not belong to this mode"),
            (
                "--security tls --tls-certificate a",
                "requires --tls-key FILE",
            ),
            (
                "--security tls --tls-certificate a --tls-key b",
                "add --allow-anonymous",
            ),
            ("--peer a", "is required: `muxgate keygen` creates a key"),
            ("--key a", "--key requires --peer mte1..."),
            ("--key a --peer mte1a", "--peer: not the public key"),
            (&wrong_role, "--peer: the key of an exit"),
            ("--security keys", "requires --key FILE"),
            ("--security none --key a", "does not belong to this mode"),
            ("--key a --tls-ca b", "does not belong to this mode"),
        ] {
            let error = security(line).unwrap_err();
            assert!(error.contains(problem), "{line}: {error}");
        }
    }
}

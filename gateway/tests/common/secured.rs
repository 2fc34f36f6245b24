//! Options and files for protocols whose carriers need certificates or keys.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::tools::{run, stdout};

/// The `security` that tests write in their YAML. [`filled_in`] replaces it if the protocol needs
/// other settings.
const NONE: &str = "security: {mode: None}";
/// The protocols whose carriers need certificates.
const ON_QUIC: [&str; 2] = ["QUIC", "HTTP3"];
const EXIT: &str = "exit.example.com";
const ENTRY: &str = "entry.example.com";

/// The certificates of both ends, created once per test process.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let name = format!("tls-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let done = Command::new(env!("CARGO_BIN_EXE_muxgate"))
            .args([
                "keygen", "--force", "--exit", EXIT, "--entry", ENTRY, "--tls",
            ])
            .arg(&folder)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        folder
    })
}

fn at(file: &str) -> String {
    folder().join(file).display().to_string()
}

/// The SSH keys of both ends, created once per test process: `exit` and `entry`, the files that
/// each trusts, and both `.pub` files.
pub fn ssh_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let name = format!("ssh-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // An earlier process with the same id may have left the folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        for end in ["exit", "entry"] {
            ssh_key(&folder.join(end));
        }
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        std::fs::write(folder.join("authorized_keys"), text("entry.pub")).unwrap();
        let known = format!("exit {}", text("exit.pub"));
        std::fs::write(folder.join("known_hosts"), known).unwrap();
        folder
    })
}

/// Creates a key at `path`, and its public key next to it.
pub fn ssh_key(path: &Path) {
    let path = path.to_str().unwrap();
    let args = ["-q", "-t", "ed25519", "-N", "", "-C", "a key", "-f", path];
    stdout(&run("ssh-keygen", "openssh-client", &args));
}

/// The authority of both ends.
pub fn ca() -> String {
    at("ca.crt")
}

/// The flags `--security ...` of `role` with `protocol`.
pub fn flags(protocol: &str, role: &str) -> Vec<String> {
    if is_ssh(protocol) {
        let at = |file: &str| ssh_folder().join(file).display().to_string();
        let flags = match role {
            "exit" => vec![
                ("--ssh-host-key", at("exit")),
                ("--ssh-authorized-keys", at("authorized_keys")),
            ],
            _ => vec![
                ("--ssh-user", "somebody".to_owned()),
                ("--ssh-key", at("entry")),
                ("--ssh-known-hosts", at("known_hosts")),
                ("--ssh-host-key-alias", "exit".to_owned()),
            ],
        };
        let flags = flags.into_iter();
        return flags
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
    }
    if !needs(protocol) {
        return ["--security", "none"].map(str::to_owned).into();
    }
    let peer = if role == "exit" { ENTRY } else { EXIT };
    let [certificate, key] = ["crt", "key"].map(|what| at(&format!("{role}.{what}")));
    let ca = at("ca.crt");
    [
        ("--security", "certificates"),
        ("--tls-certificate", &certificate),
        ("--tls-key", &key),
        ("--tls-ca", &ca),
        ("--peer", peer),
    ]
    .iter()
    .flat_map(|(flag, value)| [flag.to_string(), value.to_string()])
    .collect()
}

/// The `security` of `role` with protocol SSH.
pub fn ssh_security(role: &str) -> String {
    let at = |file: &str| ssh_folder().join(file).display().to_string();
    match role {
        "exit" => format!(
            "security: {{mode: SSH, hostKeys: ['{}'], authorizedKeys: '{}'}}",
            at("exit"),
            at("authorized_keys")
        ),
        _ => format!(
            "security: {{mode: SSH, user: somebody, key: '{}', knownHosts: '{}', hostKeyAlias: exit}}",
            at("entry"),
            at("known_hosts")
        ),
    }
}

/// Replaces the `security` in `yaml` if its protocol needs certificates or keys. Moves the peers of an
/// entry to its exits, so that tests can write the peers of both roles in one way.
pub fn filled_in(yaml: &str) -> String {
    let yaml = with_security(yaml);
    let end = (yaml.contains("role: Entry")).then(|| yaml.split_once(", peers: ["));
    let Some((before, (peers, after))) = end
        .flatten()
        .and_then(|(before, rest)| Some((before, rest.split_once("]}")?)))
    else {
        return yaml;
    };
    let field = match yaml.contains("mode: PublicKeys") {
        true => "publicKeys",
        false => "certificateNames",
    };
    let identified = |line: &str| match line.starts_with("  address: ") {
        true => format!("{line}\n  {field}: [{peers}]\n"),
        false => format!("{line}\n"),
    };
    format!("{before}}}{after}")
        .lines()
        .map(identified)
        .collect()
}

fn with_security(yaml: &str) -> String {
    if yaml.contains("protocol: SSH") {
        let role = match yaml.contains("role: Exit") {
            true => "exit",
            false => "entry",
        };
        return yaml.replace(NONE, &ssh_security(role));
    }
    if !needs_in(yaml) {
        return yaml.to_owned();
    }
    let (role, peer) = match yaml.contains("role: Exit") {
        true => ("exit", ENTRY),
        false => ("entry", EXIT),
    };
    let [certificate, key] = ["crt", "key"].map(|what| at(&format!("{role}.{what}")));
    let ca = at("ca.crt");
    let security = format!(
        "security: {{mode: Certificates, certificate: '{certificate}', key: '{key}', ca: '{ca}', peers: ['{peer}']}}"
    );
    yaml.replace(NONE, &security)
}

fn needs(protocol: &str) -> bool {
    ON_QUIC
        .iter()
        .any(|known| protocol.eq_ignore_ascii_case(known))
}

fn is_ssh(protocol: &str) -> bool {
    protocol.eq_ignore_ascii_case("SSH")
}

fn needs_in(yaml: &str) -> bool {
    ON_QUIC
        .iter()
        .any(|known| yaml.contains(&format!("protocol: {known}")))
}

//! What a protocol that has no carriers without certificates is started with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a test says where its protocol decides.
const NONE: &str = "security: {mode: None}";
/// The protocols that have no carriers without certificates.
const ON_QUIC: [&str; 2] = ["QUIC", "HTTP3"];
const EXIT: &str = "exit.example.com";
const ENTRY: &str = "entry.example.com";

/// The certificates of both ends, made once by each test process.
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

/// The authority of both.
pub fn ca() -> String {
    at("ca.crt")
}

/// `--security ...` of the `role` with `protocol`, as on the command line.
pub fn flags(protocol: &str, role: &str) -> Vec<String> {
    if !needs(protocol) {
        return ["--security", "none"].map(str::to_owned).into();
    }
    let peer = if role == "exit" { ENTRY } else { EXIT };
    let [certificate, key] = ["crt", "key"].map(|what| at(&format!("{role}.{what}")));
    let ca = at("ca.crt");
    [
        ("--security", "mtls"),
        ("--tls-certificate", &certificate),
        ("--tls-key", &key),
        ("--tls-ca", &ca),
        ("--peer", peer),
    ]
    .iter()
    .flat_map(|(flag, value)| [flag.to_string(), value.to_string()])
    .collect()
}

/// `yaml`, with certificates where its protocol has no carriers without.
pub fn filled_in(yaml: &str) -> String {
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
        "security: {{mode: MutualTls, certificate: '{certificate}', key: '{key}', ca: '{ca}', peers: ['{peer}']}}"
    );
    yaml.replace(NONE, &security)
}

fn needs(protocol: &str) -> bool {
    ON_QUIC
        .iter()
        .any(|known| protocol.eq_ignore_ascii_case(known))
}

fn needs_in(yaml: &str) -> bool {
    ON_QUIC
        .iter()
        .any(|known| yaml.contains(&format!("protocol: {known}")))
}

//! `muxgate keygen`: creates the key of a gateway, or certificates for TLS.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use muxtunnel_gateway_config::{GatewayKey, Role};
use rcgen::{KeyPair, PKCS_ED25519};
use zeroize::Zeroizing;

use super::tls_files;
use crate::base::files::read_text;

/// Arguments of `muxgate keygen`.
#[derive(Debug, Args)]
pub(super) struct Keygen {
    /// The file of the private key. Only its owner may read it.
    #[arg(value_name = "FILE", required_unless_present = "tls")]
    file: Option<PathBuf>,
    /// Print the public keys of an existing FILE, and write nothing.
    #[arg(long, conflicts_with_all = ["tls", "force"])]
    show: bool,
    /// Write ca.crt, exit.crt and entry.crt with their keys to this folder instead, for `--security
    /// certificates`.
    #[arg(long, value_name = "FOLDER", conflicts_with = "file")]
    tls: Option<PathBuf>,
    /// With --tls: the names of the exit, as DNS names or IP addresses (repeatable). An entry uses
    /// the first name as --peer.
    #[arg(
        long,
        value_name = "NAME",
        requires = "tls",
        default_value = "exit.muxgate.internal"
    )]
    exit: Vec<String>,
    /// With --tls: the names of the entry (repeatable).
    #[arg(
        long,
        value_name = "NAME",
        requires = "tls",
        default_value = "entry.muxgate.internal"
    )]
    entry: Vec<String>,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
}

impl Keygen {
    /// Writes the files; returns the text to print: the public keys, or the commands to run next.
    ///
    /// # Errors
    /// A file exists already or cannot be written, or a name is invalid.
    pub(super) fn run(&self) -> anyhow::Result<String> {
        match (&self.file, &self.tls) {
            (_, Some(folder)) => tls_files::make(folder, &self.exit, &self.entry, self.force),
            (Some(file), None) if self.show => show(file),
            (Some(file), None) => self.key(file),
            (None, None) => anyhow::bail!("no file to write to is given"),
        }
    }

    /// Creates the key of a gateway.
    fn key(&self, file: &Path) -> anyhow::Result<String> {
        let wrong = "the cryptographic library cannot create a key";
        let key = Ed25519KeyPair::generate().ok().context(wrong)?;
        // Version 1 of PKCS #8, because OpenSSL 3.0 does not read version 2.
        let document = key.to_pkcs8v1().ok().context(wrong)?;
        let text = Zeroizing::new(STANDARD.encode(document.as_ref()));
        let text = Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *text
        ));
        write_secret(file, &text, self.force)?;
        public_keys(key.public_key().as_ref())
    }
}

/// The public keys of the private key in `file`.
fn show(file: &Path) -> anyhow::Result<String> {
    let wrong = || {
        format!(
            "{} has no Ed25519 private key (PKCS #8 in PEM)",
            file.display()
        )
    };
    let text = read_text(file)?;
    let key = KeyPair::from_pem(&text).with_context(wrong)?;
    anyhow::ensure!(key.is_compatible(&PKCS_ED25519), wrong());
    public_keys(key.public_key_raw())
}

/// One line for each role in which a gateway can use the key.
fn public_keys(bytes: &[u8]) -> anyhow::Result<String> {
    let bytes = bytes.try_into().context("the key does not have 32 bytes")?;
    let line = |role| GatewayKey::new(role, bytes).map(|key| key.to_string());
    let lines: Vec<_> = [Role::Entry, Role::Exit, Role::Rendezvous]
        .into_iter()
        .map(line)
        .collect::<Result<_, _>>()?;
    Ok(lines.join("\n"))
}

/// Writes a file that only its owner may read. `force`: whether to replace an existing file. The
/// replacement is atomic.
///
/// # Errors
/// The file exists, or cannot be written.
pub(super) fn write_secret(file: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let wrong = || format!("cannot write {}", file.display());
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    if !force {
        let mut written = options.open(file).with_context(|| {
            let hint = if file.exists() {
                " without --force"
            } else {
                ""
            };
            format!("{}{hint}", wrong())
        })?;
        return written.write_all(text.as_bytes()).with_context(wrong);
    }
    // A new file replaces the old file. So the new file does not get the old file's mode, and a
    // process that has the old file open cannot read the secret.
    let staged = file.with_extension(format!("{}.new", std::process::id()));
    let written = options
        .open(&staged)
        .and_then(|mut staged| staged.write_all(text.as_bytes()));
    let moved = written.and_then(|()| std::fs::rename(&staged, file));
    if moved.is_err() {
        // The file may not exist.
        let _ = std::fs::remove_file(&staged);
    }
    moved.with_context(wrong)
}

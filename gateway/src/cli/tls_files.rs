//! Creates a certificate authority, and certificates for an exit and an entry, for `--security
//! certificates`.
//!
//! The authority signs both certificates, and may not sign other authorities. Its key is also
//! written, for certificates of further gateways. Existing files are overwritten only on request:
//! otherwise, if one of the files exists, no file is written.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};

use super::keygen::write_secret;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity of the authority, in days.
const AUTHORITY_DAYS: u32 = 3650;
/// Validity of a certificate, in days: the maximum that browsers accepted before 2020.
const CERTIFICATE_DAYS: u32 = 825;

/// Writes the six files into `folder`; returns the command lines to run next.
///
/// # Errors
/// A name is invalid, or a file exists or cannot be written.
pub(super) fn make(
    folder: &Path,
    exit: &[String],
    entry: &[String],
    force: bool,
) -> anyhow::Result<String> {
    let authority_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let params = authority()?;
    let authority = params.self_signed(&authority_key)?.pem();
    let mut files = vec![
        ("ca.crt", authority),
        ("ca.key", authority_key.serialize_pem()),
    ];
    let issuer = Issuer::new(params, authority_key);
    let sides = [
        (
            exit,
            ExtendedKeyUsagePurpose::ServerAuth,
            ["exit.crt", "exit.key"],
        ),
        (
            entry,
            ExtendedKeyUsagePurpose::ClientAuth,
            ["entry.crt", "entry.key"],
        ),
    ];
    for (names, purpose, [certificate, key]) in sides {
        let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = end(names, purpose)?;
        files.push((certificate, params.signed_by(&made, &issuer)?.pem()));
        files.push((key, made.serialize_pem()));
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let there = files.iter().find(|(name, _)| folder.join(name).exists());
    if let Some((name, _)) = there.filter(|_| !force) {
        let file = folder.join(name);
        anyhow::bail!(
            "cannot write {} without --force: the file exists",
            file.display()
        );
    }
    for (name, text) in &files {
        write_secret(&folder.join(name), text, force)?;
    }
    Ok(next(folder, &exit[0], &entry[0]))
}

fn authority() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "muxgate authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    last(&mut params, AUTHORITY_DAYS)?;
    Ok(params)
}

fn end(names: &[String], purpose: ExtendedKeyUsagePurpose) -> anyhow::Result<CertificateParams> {
    let first = names.first().context("a certificate needs a name")?;
    let mut params = CertificateParams::new(names)
        .with_context(|| format!("{names:?} are not valid names for a certificate"))?;
    params.distinguished_name.push(DnType::CommonName, first);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    last(&mut params, CERTIFICATE_DAYS)?;
    Ok(params)
}

/// Sets the validity: from one day before now, for hosts whose clocks are slow, to `days` days
/// after now.
fn last(params: &mut CertificateParams, days: u32) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + DAY * days;
    Ok(())
}

/// The commands to run next.
fn next(folder: &Path, exit: &str, entry: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let side = |name: &str| {
        let (certificate, key) = (at(&format!("{name}.crt")), at(&format!("{name}.key")));
        let ca = at("ca.crt");
        format!("--tls-certificate {certificate} --tls-key {key} --tls-ca {ca}")
    };
    format!(
        "muxgate exit --security certificates {} --peer {entry} --listen 0.0.0.0:64000 --allow HOST:PORT\n\
         muxgate entry --security certificates {} --peer {exit} --connect EXIT:64000 --forward PORT:HOST:PORT\n",
        side("exit"),
        side("entry"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const FILES: [&str; 6] = [
        "ca.crt",
        "ca.key",
        "exit.crt",
        "exit.key",
        "entry.crt",
        "entry.key",
    ];

    fn make_in(folder: &Path, force: bool) -> anyhow::Result<String> {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        make(
            folder,
            &names(&["exit.example.com", "192.0.2.1"]),
            &names(&["entry.example.com"]),
            force,
        )
    }

    #[test]
    fn six_files_are_for_their_owner_alone_and_not_overwritten_unless_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new");
        let said = make_in(&folder, false).unwrap();
        assert_eq!(said.lines().count(), 2, "{said}");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let before: Vec<_> = FILES.iter().map(|name| read(name)).collect();
        for name in FILES {
            let mode = std::fs::metadata(folder.join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        // If one file exists, no file is written.
        for name in &FILES[1..] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        let error = make_in(&folder, false).unwrap_err().to_string();
        assert!(error.contains("ca.crt without --force"), "{error}");
        assert!(!folder.join("exit.key").exists());
        make_in(&folder, true).unwrap();
        assert!(
            FILES
                .iter()
                .zip(&before)
                .all(|(name, before)| read(name) != *before)
        );
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), FILES.len());
    }

    #[test]
    fn what_can_be_no_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["spät".to_owned()];
        let error = make(dir.path(), &names, &names, false).unwrap_err();
        assert!(error.to_string().contains("not valid names"), "{error}");
    }
}

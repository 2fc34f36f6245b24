//! The files that gateways follow, as the gateways report them. Pure.

use muxtunnel_gateway_config::status::{File, FileUse, Status};

/// Whether the gateway reports the state of its files. A gateway of an older version does not, so
/// the state of its files is unknown.
pub(super) fn are_known(status: &Status) -> bool {
    status.files.is_some()
}

/// The first file whose newest content the gateway cannot use, in a sentence.
pub(super) fn rejected(status: &Status) -> Option<String> {
    first(status, |_| true)
}

/// Works like [`rejected`], for the files of certificates, keys and peers.
pub(super) fn rejected_credentials(status: &Status) -> Option<String> {
    first(status, |file| file.purpose == FileUse::Credentials)
}

fn first(status: &Status, counts: impl Fn(&File) -> bool) -> Option<String> {
    let mut files = status.files.iter().flatten();
    let (path, error) = files.find_map(|file| {
        let error = file.error.as_ref().filter(|_| counts(file))?;
        Some((&file.path, error))
    })?;
    let place = match error.contains(path.as_str()) {
        true => String::new(),
        false => format!("{path}: "),
    };
    Some(format!(
        "the gateway keeps the last usable content of a file: {place}{error}"
    ))
}

//! The files that gateways follow, as the gateways report them. Pure.

use muxtunnel_gateway_config::status::{File, FileUse, Status};

/// The first file whose newest content the gateway cannot use, in a sentence.
pub(super) fn rejected(status: &Status) -> Option<String> {
    status.files.iter().flatten().find_map(sentence)
}

/// Works like [`rejected`], for the files of certificates, keys and peers.
pub(super) fn rejected_credentials(status: &Status) -> Option<String> {
    let files = status.files.iter().flatten();
    let mut files = files.filter(|file| file.purpose == FileUse::Credentials);
    files.find_map(sentence)
}

fn sentence(File { path, error, .. }: &File) -> Option<String> {
    let error = error.as_ref()?;
    let place = match error.contains(path) {
        true => String::new(),
        false => format!("{path}: "),
    };
    Some(format!(
        "the gateway keeps the last usable content of a file: {place}{error}"
    ))
}

//! Which version of the configuration file is in force.

use muxtunnel_gateway_config::{Security, config_hash};

/// The version of the configuration file that is in force, and why a newer version is not.
#[derive(Debug)]
pub(crate) struct InForce {
    hash: String,
    /// The security whose credentials are in force.
    security: Security,
    /// The hash and the security of a newer version, until its credentials are in force.
    waits: Option<(String, Security)>,
    /// Why the file, or a part of the file, is not in force.
    error: Option<String>,
}

impl InForce {
    /// `text` is the content of the file with which the gateway starts.
    pub(crate) fn new(text: &str, security: &Security) -> Self {
        Self {
            hash: config_hash(text),
            security: security.clone(),
            waits: None,
            error: None,
        }
    }

    /// The hash of the last version that is in force as a whole.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    pub(crate) const fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    /// Records that a new version is in force. Its hash counts as soon as the credentials of its
    /// `security` are in force, too.
    pub(crate) fn taken(&mut self, text: &str, security: &Security) {
        self.error = None;
        self.waits = Some((config_hash(text), security.clone()));
        self.take_hash();
    }

    /// Records that the credentials of `security` are in force.
    pub(crate) fn credentials_taken(&mut self, security: &Security) {
        self.security = security.clone();
        self.take_hash();
    }

    /// Records that only a part of a new version is in force. `error` names the other part. The hash
    /// remains that of the last complete version.
    pub(crate) fn taken_in_part(&mut self, error: String) {
        self.error = Some(error);
        self.waits = None;
    }

    pub(crate) fn refused(&mut self, error: String) {
        self.error = Some(error);
    }

    fn take_hash(&mut self) {
        let security = &self.security;
        let taken = self.waits.take_if(|(_, waits_for)| *waits_for == *security);
        if let Some((hash, _)) = taken {
            self.hash = hash;
        }
    }
}

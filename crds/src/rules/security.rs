//! The rules of keys and certificates.

use kube::core::Rule;

use super::carrier::{protocol, protocols};
use super::{given, has, rule, set, value};

/// CEL: the security mode of an object.
pub(super) fn mode() -> String {
    value("self.security.mode", "PublicKeys")
}

pub(crate) fn certificates_of_mode() -> Rule {
    let mode = "(has(self.mode) ? self.mode : 'PublicKeys')";
    rule(
        format!("({mode} == 'Certificates') == has(self.certificates)"),
        format!(
            "has(self.certificates) ? 'security.certificates is for mode Certificates, not for ' + {mode} + ': set mode, or \
             remove certificates' : 'security.mode Certificates needs certificates'"
        ),
    )
}

pub(crate) fn certificate_source() -> Rule {
    rule(
        "has(self.secretRef) != has(self.issuerRef)",
        "'a certificate needs exactly one of secretRef and issuerRef'",
    )
}

/// The operator knows the names only of certificates that it requests.
pub(crate) fn certificate_names_needed(end: &str) -> Rule {
    rule(
        format!(
            "!has(self.exit) || {} || !{}",
            given(&format!("{end}Names")),
            has(&format!("self.{end}.secretRef"))
        ),
        format!(
            "'security.certificates.{end} with secretRef ' + self.{end}.secretRef.name + ' needs {end}Names, the names in \
             the certificate'"
        ),
    )
}

pub(crate) fn quic_has_tls() -> Rule {
    let protocol = protocol();
    rule(
        format!(
            "{} != 'None' || !({protocol} in {})",
            mode(),
            set(&protocols(|can| !can.bytes))
        ),
        format!(
            "'carrier.protocol ' + {protocol} + ' includes TLS: set security.mode to PublicKeys or Certificates, not None'"
        ),
    )
}

/// The peers of HBONE are proxies of a mesh, which have certificates.
pub(crate) fn hbone_has_certificates() -> Rule {
    rule(
        format!("{} != 'HBONE' || {} != 'PublicKeys'", protocol(), mode()),
        "'carrier.protocol HBONE needs security.mode Certificates or None, because proxies of a mesh have no pinned keys'",
    )
}

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
        "[has(self.secretRef), has(self.issuerRef), has(self.csi)].exists_one(given, given)",
        "'a certificate needs exactly one of secretRef, issuerRef and csi'",
    )
}

/// The kubelet tells drivers the pod by these keys, and may leave them out.
pub(crate) fn csi_attributes() -> Rule {
    rule(
        "!has(self.attributes) || self.attributes.all(key, size(key) <= 253 && !key.startsWith('csi.storage.k8s.io/'))",
        "'csi: the keys of attributes of driver ' + self.driver + ' must have at most 253 characters, and not begin with \
         csi.storage.k8s.io/, which is for the kubelet: remove the others'",
    )
}

pub(crate) fn one_source_of_keys() -> Rule {
    rule(
        "!has(self.generations) || !has(self.secretRefs)",
        "'key has generations and secretRefs: remove one of both'",
    )
}

pub(crate) fn key_secrets_differ() -> Rule {
    rule(
        "!has(self.secretRefs) || self.secretRefs.size() < 2 || self.secretRefs[0].name != self.secretRefs[1].name",
        "'key.secretRefs has ' + self.secretRefs[0].name + ' twice: remove one of both'",
    )
}

/// The operator creates the keys of both ends together, and pins them.
pub(crate) fn own_keys_need_another_end() -> Rule {
    rule(
        format!("!{} || {}", has("self.key.secretRefs"), given("connect")),
        "'key.secretRefs needs connect, because the operator creates the keys of a tunnel with an exit of its own: remove secretRefs'",
    )
}

/// The operator knows the names only of certificates that it requests.
pub(crate) fn certificate_names_needed(end: &str) -> Rule {
    rule(
        format!(
            "!has(self.exit) || {} || has(self.{end}.issuerRef)",
            given(&format!("{end}Names")),
        ),
        format!(
            "'security.certificates.{end} without issuerRef needs {end}Names, the names in the certificate'"
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

//! The rules of keys and certificates.

use kube::core::Rule;

use super::rule;

/// CEL: the security mode of `security`, which may be absent.
fn mode(security: &str) -> String {
    format!("(has({security}) && has({security}.mode) ? {security}.mode : 'PublicKeys')")
}

/// CEL: the security mode of `self`.
const OWN_MODE: &str = "(has(self.mode) ? self.mode : 'PublicKeys')";

pub(crate) fn certificates_of_their_mode(end: &str) -> Rule {
    rule(
        format!("{OWN_MODE} == 'MutualTls' || !has(self.{end})"),
        format!(
            "'security.{end} names a certificate, and mode ' + {OWN_MODE} + ' uses none: set mode to MutualTls, or \
             remove {end}'"
        ),
    )
}

pub(crate) fn issuer_is_of_certificates() -> Rule {
    rule(
        format!("{OWN_MODE} == 'MutualTls' || !has(self.issuerRef)"),
        format!(
            "'security.issuerRef ' + self.issuerRef.name + ' is for mode MutualTls, not for ' + {OWN_MODE} + ': set \
             mode to MutualTls, or remove issuerRef'"
        ),
    )
}

pub(crate) fn certificates_are_somewhere(end: &str) -> Rule {
    rule(
        format!("!has(self.{end}) || has(self.{end}.secretName) != has(self.issuerRef)"),
        format!(
            "has(self.issuerRef) ? 'security.{end}.secretName: with issuerRef, cert-manager writes another Secret: \
             remove secretName' : 'security.{end} needs secretName, the Secret with the certificate of the {end} \
             gateways'"
        ),
    )
}

/// With an issuer, the operator knows the names of both ends of its own tunnel. Otherwise `entry` and
/// `exit` must name their peers.
pub(crate) fn certificates_of_each_end() -> Rule {
    let asked = "self.carrier.security";
    let (mode, both) = (
        mode(asked),
        format!("(has({asked}.entry) && has({asked}.exit))"),
    );
    rule(
        format!(
            "!has(self.carrier) || {mode} != 'MutualTls' || self.side == 'Rendezvous' || (self.side == 'Entry' ? \
             has({asked}.entry) : self.side == 'Exit' ? has({asked}.exit) : ({both} || (has({asked}.issuerRef) && \
             !has({asked}.entry) && !has({asked}.exit))))"
        ),
        "'carrier.security: mode MutualTls with side ' + self.side + ' needs ' + (self.side == 'Both' ? 'entry and exit' : \
         self.side == 'Entry' ? 'entry' : 'exit') + ', the certificates of its gateways'",
    )
}

/// An entry without a pinned key would have no exit that it accepts. The rule
/// [`hbone_has_certificates`] refuses HBONE with public keys.
pub(crate) fn public_keys_of_an_exit_elsewhere() -> Rule {
    let mode = mode("self.carrier.security");
    let needs = format!("(self.side == 'Entry' && {mode} == 'PublicKeys')");
    rule(
        format!(
            "!has(self.carrier) || self.carrier.protocol == 'HBONE' || {needs} == has(self.carrier.publicKeys)"
        ),
        format!(
            "{needs} ? 'side Entry needs carrier.publicKeys, the keys in the status of the exit: kubectl get mt -o wide \
             shows them' : 'carrier.publicKeys is only for side Entry with security mode PublicKeys: remove \
             carrier.publicKeys'"
        ),
    )
}

/// The peers of HBONE are proxies of a mesh, which have certificates.
pub(crate) fn hbone_has_certificates() -> Rule {
    rule(
        format!(
            "self.protocol != 'HBONE' || {} != 'PublicKeys'",
            mode("self.security")
        ),
        "'carrier.protocol HBONE needs carrier.security.mode MutualTls or None, because proxies of a mesh have no pinned \
         keys'",
    )
}

pub(crate) fn hbone_measured_without_keys() -> Rule {
    rule(
        format!(
            "!('HBONE' in self.protocols) || {} != 'PublicKeys'",
            mode("self.tunnel.carrier.security")
        ),
        "'protocols: HBONE needs tunnel.carrier.security.mode MutualTls or None'",
    )
}

pub(crate) fn certificates_of_both_ends() -> Rule {
    let mode = mode("self.security");
    rule(
        format!(
            "{mode} != 'MutualTls' || (has(self.security.entry) && has(self.security.exit)) || \
             (has(self.security.issuerRef) && !has(self.security.entry) && !has(self.security.exit))"
        ),
        "'security: mode MutualTls needs both entry and exit, the certificates of the gateways, or issuerRef'",
    )
}

pub(crate) fn key_is_of_an_end() -> Rule {
    rule(
        "!has(self.key) || self.side != 'Rendezvous'",
        "'key is for entries and exits, and side Rendezvous has none: remove key'",
    )
}

/// The gateways of the former exit would not notice the change.
pub(crate) fn peer_exit_immutable() -> Rule {
    rule(
        "self.exitRef.name == oldSelf.exitRef.name",
        "'exitRef.name cannot be changed from ' + oldSelf.exitRef.name + ' to ' + self.exitRef.name + ': create another \
         MuxPeer'",
    )
}

pub(crate) fn ttl_needs_expiration() -> Rule {
    rule(
        "!has(self.ttlSecondsAfterExpiration) || has(self.expirationTime)",
        "'ttlSecondsAfterExpiration %d needs expirationTime, which it counts from'.format([self.ttlSecondsAfterExpiration])",
    )
}

//! The rules of keys and certificates.

use kube::core::Rule;

use super::rule;

pub(crate) fn keys_for_nothing(end: &str) -> Rule {
    rule(
        format!("self.mode != 'None' || !has(self.{end})"),
        format!(
            "'security.{end} names keys, but mode None uses no keys: set mode to MutualTls or Noise'"
        ),
    )
}

pub(crate) fn psk_is_of_noise() -> Rule {
    rule(
        "self.mode == 'Noise' || !has(self.preSharedKey) || !self.preSharedKey",
        "'security.preSharedKey is for mode Noise, not for ' + self.mode + ': remove preSharedKey'",
    )
}

pub(crate) fn issuer_is_of_tls() -> Rule {
    rule(
        "self.mode == 'MutualTls' || !has(self.issuerRef)",
        "'security.issuerRef ' + self.issuerRef.name + ' is for mode MutualTls, not for ' + self.mode + ': remove issuerRef'",
    )
}

pub(crate) fn keys_are_somewhere(end: &str) -> Rule {
    rule(
        format!("!has(self.{end}) || has(self.{end}.secretName) != has(self.issuerRef)"),
        format!(
            "has(self.issuerRef) ? 'security.{end}.secretName: with issuerRef, cert-manager writes another Secret: \
             remove secretName' : 'security.{end} needs secretName, the Secret with the keys of the {end} gateways'"
        ),
    )
}

/// If the operator issues both certificates, it knows the peers of both ends. Otherwise `entry` and
/// `exit` must name their peers.
pub(crate) fn keys_of_each_end() -> Rule {
    let asked = "self.carrier.security";
    let both = format!("(has({asked}.entry) && has({asked}.exit))");
    let managed = format!(
        "({asked}.mode == 'MutualTls' && !has({asked}.issuerRef) && !has({asked}.entry) && !has({asked}.exit))"
    );
    rule(
        format!(
            "!has(self.carrier) || has(self.carrier.joinFrom) || (!has({asked}) ? self.side != 'Entry' : \
             {asked}.mode == 'None' || self.side == 'Rendezvous' || (self.side == 'Entry' ? has({asked}.entry) : \
             self.side == 'Exit' ? ({managed} || has({asked}.exit)) : ({managed} || {both} || \
             (has({asked}.issuerRef) && !has({asked}.entry) && !has({asked}.exit)))))"
        ),
        format!(
            "!has({asked}) ? 'side Entry needs carrier.joinFrom or carrier.security.entry, by which the entry verifies the \
             exit' : 'carrier.security: mode ' + {asked}.mode + ' with side ' + \
             self.side + ' needs ' + (self.side == 'Both' ? 'entry and exit' : self.side == 'Entry' ? 'entry' : \
             'exit') + ', the keys of its gateways'"
        ),
    )
}

pub(crate) fn keys_of_both_ends() -> Rule {
    rule(
        "!has(self.security) || self.security.mode == 'None' || (has(self.security.entry) == \
         has(self.security.exit) && (self.security.mode == 'MutualTls' || has(self.security.entry)))",
        "'security: mode ' + self.security.mode + ' needs both entry and exit, the keys of the gateways' + \
         (self.security.mode == 'MutualTls' ? ', or neither, so that the operator issues the certificates' : '')",
    )
}

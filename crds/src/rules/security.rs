//! The rules of keys and certificates.

use kube::core::Rule;

use super::rule;

pub(crate) fn keys_for_nothing(end: &str) -> Rule {
    rule(
        format!("self.mode != 'None' || !has(self.{end})"),
        format!(
            "'security.{end} names keys, but mode None uses none: is MutualTls or Noise meant?'"
        ),
    )
}

pub(crate) fn psk_is_of_noise() -> Rule {
    rule(
        "self.mode == 'Noise' || !has(self.preSharedKey) || !self.preSharedKey",
        "'security.preSharedKey is for mode Noise, not ' + self.mode",
    )
}

pub(crate) fn issuer_is_of_tls() -> Rule {
    rule(
        "self.mode == 'MutualTls' || !has(self.issuerRef)",
        "'security.issuerRef ' + self.issuerRef.name + ' is for mode MutualTls, not ' + self.mode",
    )
}

pub(crate) fn keys_are_somewhere(end: &str) -> Rule {
    rule(
        format!("!has(self.{end}) || has(self.{end}.secretName) != has(self.issuerRef)"),
        format!(
            "has(self.issuerRef) ? 'security.{end}.secretName: with issuerRef cert-manager writes to a Secret of \
             its own: leave it out' : 'security.{end} needs secretName, the Secret with its keys'"
        ),
    )
}

/// Who is at the other end is said by the operator alone where it issues for both; else by the keys of each end.
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
            "!has({asked}) ? 'side Entry needs carrier.joinFrom, the bundle of the exit, or carrier.security: \
             nothing else says who the exit is' : 'carrier.security: mode ' + {asked}.mode + ' with side ' + \
             self.side + ' needs ' + (self.side == 'Both' ? 'entry and exit' : self.side == 'Entry' ? 'entry' : \
             'exit') + ', the keys of its gateways'"
        ),
    )
}

pub(crate) fn keys_of_both_ends() -> Rule {
    rule(
        "!has(self.security) || self.security.mode == 'None' || (has(self.security.entry) == \
         has(self.security.exit) && (self.security.mode == 'MutualTls' || has(self.security.entry)))",
        "'security: mode ' + self.security.mode + ' needs entry and exit, the keys of the gateways'",
    )
}

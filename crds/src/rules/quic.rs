//! What does not go together with `carrier.protocol: QUIC` and `HTTP3`, which run on UDP and have TLS inside.

use kube::core::Rule;

use super::rule;

pub(crate) fn quic_has_tls() -> Rule {
    rule(
        "!(self.protocol in ['QUIC', 'HTTP3']) || !has(self.security) || !has(self.security.mode) || \
         self.security.mode == 'MutualTls'",
        "'carrier.protocol ' + self.protocol + ' has TLS inside: carrier.security.mode MutualTls, not ' + self.security.mode",
    )
}

pub(crate) fn quic_is_udp() -> Rule {
    rule(
        "!(self.protocol in ['QUIC', 'HTTP3']) || !(has(self.webSocket) || has(self.rendezvous) || \
         has(self.transport))",
        "'carrier.protocol ' + self.protocol + ' runs on UDP and on nothing else: leave ' + (has(self.webSocket) ? \
         'carrier.webSocket' : has(self.rendezvous) ? 'carrier.rendezvous' : 'carrier.transport') + ' out'",
    )
}

/// They name their clients at the beginning of a TCP connection.
pub(crate) fn quic_has_no_trusted_proxies() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || \
         !(self.carrier.protocol in ['QUIC', 'HTTP3'])",
        "'exit.trustedProxies name their clients at the beginning of a TCP connection, and carrier.protocol ' + \
         self.carrier.protocol + ' has none'",
    )
}

/// The same of a matrix, where all protocols are secured alike.
pub(crate) fn quic_measured_has_tls() -> Rule {
    rule(
        "!self.protocols.exists(p, p in ['QUIC', 'HTTP3']) || !has(self.tunnel.carrier.security) || \
         !has(self.tunnel.carrier.security.mode) || self.tunnel.carrier.security.mode == 'MutualTls'",
        "'protocols: ' + self.protocols.filter(p, p in ['QUIC', 'HTTP3'])[0] + ' has TLS inside: \
         tunnel.carrier.security.mode MutualTls, not ' + \
         self.tunnel.carrier.security.mode",
    )
}

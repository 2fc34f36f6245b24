//! The rules of `carrier.protocol: QUIC` and `carrier.protocol: HTTP3`, which run on UDP and
//! include TLS.

use kube::core::Rule;

use super::rule;

pub(crate) fn quic_has_tls() -> Rule {
    rule(
        "!(self.protocol in ['QUIC', 'HTTP3']) || !has(self.security) || !has(self.security.mode) || \
         self.security.mode != 'None'",
        "'carrier.protocol ' + self.protocol + ' includes TLS: set carrier.security.mode to PublicKeys or MutualTls, not \
         None'",
    )
}

pub(crate) fn quic_is_udp() -> Rule {
    rule(
        "!(self.protocol in ['QUIC', 'HTTP3']) || !(has(self.webSocket) || has(self.rendezvous) || \
         has(self.transport))",
        "'carrier.protocol ' + self.protocol + ' runs only on UDP: remove ' + (has(self.webSocket) ? \
         'carrier.webSocket' : has(self.rendezvous) ? 'carrier.rendezvous' : 'carrier.transport')",
    )
}

/// Trusted proxies send their clients' addresses at the beginning of a TCP connection.
pub(crate) fn quic_has_no_trusted_proxies() -> Rule {
    rule(
        "!has(self.exit) || !has(self.exit.trustedProxies) || !has(self.carrier) || \
         !(self.carrier.protocol in ['QUIC', 'HTTP3'])",
        "'exit.trustedProxies needs carriers over TCP, and carrier.protocol ' + self.carrier.protocol + ' uses UDP: \
         remove exit.trustedProxies'",
    )
}

/// All protocols of a matrix share one security mode.
pub(crate) fn quic_measured_has_tls() -> Rule {
    rule(
        "!self.protocols.exists(p, p in ['QUIC', 'HTTP3']) || !has(self.tunnel.carrier.security) || \
         !has(self.tunnel.carrier.security.mode) || self.tunnel.carrier.security.mode != 'None'",
        "'protocols: ' + self.protocols.filter(p, p in ['QUIC', 'HTTP3'])[0] + ' includes TLS: set \
         tunnel.carrier.security.mode to PublicKeys or MutualTls, not None'",
    )
}

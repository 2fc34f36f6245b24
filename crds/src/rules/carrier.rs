//! The rules of carriers. The table of the protocols' capabilities says what each protocol can do.

use kube::core::Rule;
use muxtunnel_gateway_config::{Capabilities, Protocol};

use super::{any, given, no_item, or, rule, set, value};

/// CEL: the protocol of the carriers of an object.
pub(super) fn protocol() -> String {
    value("self.carrier.protocol", "Native")
}

/// The protocols of resources with a capability. The resources have no protocol SSH.
pub(super) fn protocols(capability: fn(Capabilities) -> bool) -> Vec<&'static str> {
    let has = |one: &Protocol| *one != Protocol::Ssh && capability(one.can());
    let all = Protocol::ALL.into_iter().filter(has);
    all.map(Protocol::as_str).collect()
}

/// CEL: the text with the protocols of `capability` for a message.
fn choice(capability: fn(Capabilities) -> bool) -> String {
    or(&protocols(capability))
}

const OWN_PROTOCOL: &str = "(has(self.protocol) ? self.protocol : 'Native')";
const OWN_TRANSPORT: &str = "(has(self.transport) ? self.transport : 'TCP')";

/// Only sessions of protocol Native move between transports and use KCP.
pub(crate) fn transport_of_protocol() -> Rule {
    let (bytes, web_socket) = (protocols(|can| can.bytes), protocols(|can| can.web_socket));
    rule(
        format!(
            "!has(self.transport) || {OWN_PROTOCOL} in (self.transport == 'TCP' ? {} : self.transport == 'WebSocket' ? \
             {} : ['Native'])",
            set(&bytes),
            set(&web_socket)
        ),
        format!(
            "'carrier.transport ' + self.transport + ' is not for protocol ' + {OWN_PROTOCOL} + ({OWN_PROTOCOL} in {} ? \
             ': remove transport' : self.transport == 'WebSocket' ? ', but for {}' : ', but for Native')",
            set(&protocols(|can| !can.bytes)),
            or(&web_socket)
        ),
    )
}

pub(crate) fn web_socket_of_transport() -> Rule {
    rule(
        format!(
            "has(self.webSocket) ? {OWN_TRANSPORT} in ['WebSocket', 'Auto'] : {OWN_TRANSPORT} != 'WebSocket'"
        ),
        format!(
            "has(self.webSocket) ? 'carrier.webSocket is for transport WebSocket or Auto, not for ' + {OWN_TRANSPORT} : \
             'carrier.transport WebSocket needs carrier.webSocket.path'"
        ),
    )
}

pub(crate) fn kcp_controls_congestion() -> Rule {
    rule(
        format!(
            "{OWN_TRANSPORT} != 'KCP' || !has(self.congestionControl) || self.congestionControl == 'Auto'"
        ),
        "'carrier.congestionControl ' + self.congestionControl + ' is not for transport KCP, which has its own congestion \
         control: remove congestionControl'",
    )
}

pub(crate) fn pool_has_several() -> Rule {
    rule(
        format!(
            "!has(self.pool) || {OWN_PROTOCOL} in {}",
            set(&protocols(|can| can.several_carriers))
        ),
        format!(
            "'carrier.pool is not for protocol ' + {OWN_PROTOCOL} + ', whose sessions have one carrier: remove pool'"
        ),
    )
}

pub(crate) fn resume_is_possible() -> Rule {
    rule(
        format!(
            "!has(self.resume) || {OWN_PROTOCOL} in {}",
            set(&protocols(|can| can.resume))
        ),
        format!(
            "'carrier.resume is for protocol {}, and streams of ' + {OWN_PROTOCOL} + ' end with their carrier: remove \
             resume'",
            choice(|can| can.resume)
        ),
    )
}

pub(crate) fn pool_needs_resume() -> Rule {
    rule(
        "!has(self.resume) || self.resume || !has(self.pool) || self.pool.min == 1 && \
         (!has(self.pool.max) || self.pool.max == 1)",
        "'carrier.pool: without carrier.resume a session has one carrier, not %d: remove carrier.pool, or set \
         carrier.resume to true'.format([has(self.pool.max) ? self.pool.max : self.pool.min])",
    )
}

/// Only some protocols can request a listener from the other end.
pub(crate) fn reverse_needs_listeners(field: &str) -> Rule {
    needs_capability(&given(field), field, |can| can.listen)
}

pub(crate) fn network_needs_packets() -> Rule {
    needs_capability("has(self.network)", "network", |can| can.packets)
}

fn needs_capability(condition: &str, field: &str, capability: fn(Capabilities) -> bool) -> Rule {
    let protocol = protocol();
    rule(
        format!(
            "!{condition} || {protocol} in {}",
            set(&protocols(capability))
        ),
        format!(
            "'{field} needs carrier.protocol {}, not ' + {protocol}",
            choice(capability)
        ),
    )
}

pub(crate) fn sources_are_sent() -> Rule {
    let protocol = protocol();
    let unless = format!("{protocol} in {}", set(&protocols(|can| can.source)));
    let sends = "has(f.proxyProtocol) && has(f.proxyProtocol.send)";
    let text = format!(
        "forward %s: proxyProtocol.send needs carrier.protocol {}, not %s",
        choice(|can| can.source)
    );
    no_item(
        &unless,
        "self.forwards",
        sends,
        &text,
        &[".name", &protocol],
    )
}

/// A rendezvous joins byte streams. A header of the PROXY protocol begins a byte stream.
pub(crate) fn needs_byte_streams(field: &str) -> Rule {
    let (protocol, transport) = (protocol(), value("self.carrier.transport", "TCP"));
    rule(
        format!(
            "!{} || ({protocol} in {} && {transport} in ['TCP', 'WebSocket'])",
            any(field),
            set(&protocols(|can| can.bytes))
        ),
        format!(
            "'{field} needs carriers over TCP or WebSocket, not ' + ({protocol} in {} ? 'protocol ' + {protocol} : \
             'transport ' + {transport})",
            set(&protocols(|can| !can.bytes))
        ),
    )
}

//! Converts the protocols in specs to the protocols in gateways' configurations.

use muxtunnel_crds as crds;
use muxtunnel_gateway_config::Protocol;

/// The protocol of a gateway's configuration.
#[must_use]
pub const fn configured(protocol: crds::Protocol) -> Protocol {
    match protocol {
        crds::Protocol::Jmux => Protocol::Jmux,
        crds::Protocol::Native => Protocol::Native,
        crds::Protocol::Http2 => Protocol::Http2,
        crds::Protocol::Hbone => Protocol::Hbone,
        crds::Protocol::Quic => Protocol::Quic,
        crds::Protocol::Http3 => Protocol::Http3,
    }
}

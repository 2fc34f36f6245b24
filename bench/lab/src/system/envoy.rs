//! Two Envoys, which carry TCP in HTTP/2 CONNECT as Istio's gateways do. Each Envoy has one worker.
//!
//! The settings follow Envoy's documentation (configuration/best_practices, and the HTTP/2 options
//! of its API): a window of 16 MiB per stream and 64 MiB per connection, and a buffer of 4 MiB per
//! connection. With two workers, the measured rate was not higher than with one.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::muxgate::{Certified, certificates};
use super::{CARRIER_PORT, Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

const TYPES: &str = "type.googleapis.com/envoy.extensions";
const BUFFER_BYTES: u32 = 4 << 20;

/// `tls`: whether the Envoys use mutual TLS, as HBONE does.
pub(super) fn launches(setup: &Setup<'_>, tls: bool) -> Result<Vec<Launch>> {
    let keys = if tls {
        Some(certificates(setup.folder)?)
    } else {
        None
    };
    let accepts = keys.as_ref().map(|keys| &keys.accepts);
    let dials = keys.as_ref().map(|keys| &keys.dials);
    let exit = launch(setup, Place::Exit, "exit", &exit(setup, accepts)?)?;
    let entry = launch(setup, Place::Entry, "entry", &entry(setup, dials)?)?;
    Ok(vec![
        exit.listening(CARRIER_PORT),
        entry.listening(Service::Iperf3.entry_port()),
    ])
}

fn launch(setup: &Setup<'_>, place: Place, name: &str, config: &Value) -> Result<Launch> {
    let path = setup.file(&format!("envoy-{name}.json"), &config.to_string())?;
    let flags = "--concurrency 1 --disable-hot-restart --log-level error";
    Ok(Launch::new(place, &format!("envoy {flags} -c {path}")))
}

/// The configuration of the entry: it forwards the connections of each service to the service's
/// target by CONNECT.
fn entry(setup: &Setup<'_>, tls: Option<&Certified>) -> Result<Value> {
    let addresses = &setup.addresses;
    let listeners = Service::ALL.map(|service| {
        let proxy = json!({
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": format!("{TYPES}.filters.network.tcp_proxy.v3.TcpProxy"),
                "stat_prefix": service.name(),
                "cluster": "exit",
                "tunneling_config": {"hostname": target_at(addresses.target, service)},
            },
        });
        let address = entry_at(addresses.entry, service);
        listener(&address, json!({"filters": [proxy]}))
    });
    let listeners = listeners.into_iter().collect::<Result<Vec<_>>>()?;
    let mut cluster = cluster("exit", &at(addresses.carrier_exit, CARRIER_PORT))?;
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": format!("{TYPES}.upstreams.http.v3.HttpProtocolOptions"),
            "explicit_http_config": {"http2_protocol_options": windows()},
        },
    });
    if let Some(own) = tls {
        cluster["transport_socket"] = transport_socket("UpstreamTlsContext", own);
    }
    Ok(static_resources(listeners, vec![cluster]))
}

/// The configuration of the exit: it accepts CONNECT requests and connects each request to the
/// target that the request names.
fn exit(setup: &Setup<'_>, tls: Option<&Certified>) -> Result<Value> {
    let addresses = &setup.addresses;
    let hosts = Service::ALL.map(|service| {
        json!({
            "name": service.name(),
            "domains": [target_at(addresses.target, service)],
            "routes": [{
                "match": {"connect_matcher": {}},
                "route": {
                    "cluster": service.name(),
                    "timeout": "0s",
                    "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
                },
            }],
        })
    });
    let mut options = windows();
    options["allow_connect"] = json!(true);
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": format!("{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "exit",
            "codec_type": "HTTP2",
            "http2_protocol_options": options,
            "upgrade_configs": [{"upgrade_type": "CONNECT"}],
            "route_config": {"virtual_hosts": hosts},
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": format!("{TYPES}.filters.http.router.v3.Router")},
            }],
        },
    });
    let mut chain = json!({"filters": [manager]});
    if let Some(own) = tls {
        let mut socket = transport_socket("DownstreamTlsContext", own);
        socket["typed_config"]["require_client_certificate"] = json!(true);
        chain["transport_socket"] = socket;
    }
    let listen = listener(&at(addresses.carrier_exit, CARRIER_PORT), chain)?;
    let clusters =
        Service::ALL.map(|service| cluster(service.name(), &target_at(addresses.target, service)));
    let clusters = clusters.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(static_resources(vec![listen], clusters))
}

fn static_resources(listeners: Vec<Value>, clusters: Vec<Value>) -> Value {
    json!({"static_resources": {"listeners": listeners, "clusters": clusters}})
}

fn windows() -> Value {
    json!({"initial_stream_window_size": 16 << 20, "initial_connection_window_size": 64 << 20})
}

fn listener(address: &str, chain: Value) -> Result<Value> {
    Ok(json!({
        "name": address,
        "address": socket_address(address)?,
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [chain],
    }))
}

fn cluster(name: &str, address: &str) -> Result<Value> {
    let endpoint = json!({"endpoint": {"address": socket_address(address)?}});
    Ok(json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }))
}

fn socket_address(address: &str) -> Result<Value> {
    let (host, port) = address.rsplit_once(':').context("an address has a port")?;
    let port: u16 = port.parse().context("a port is a number")?;
    Ok(json!({"socket_address": {"address": host, "port_value": port}}))
}

fn transport_socket(context: &str, own: &Certified) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": format!("{TYPES}.transport_sockets.tls.v3.{context}"),
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "tls_certificates": [{
                    "certificate_chain": {"filename": own.certificate},
                    "private_key": {"filename": own.key},
                }],
                "validation_context": {
                    "trusted_ca": {"filename": own.ca},
                    "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": own.peer}}],
                },
            },
        },
    })
}

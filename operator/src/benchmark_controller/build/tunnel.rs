//! The MuxTunnels of an environment. There is one MuxTunnel per protocol, each with forwards to the
//! same server. If the path Network is measured, one further MuxTunnel carries IP packets.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_bench_api::{ECHO_PORT, IPERF_PORT, Path};
use muxtunnel_crds::{
    Carrier, Duration, Forward, Listen, ListenFrom, MuxTunnel, MuxTunnelSpec, Network, Protocol,
    ServiceTarget, Side, Target, Tuning, Wan,
};

use super::metadata::owned;
use crate::benchmark_controller::names::{self, Agent, End, TUNNEL, environment_labels};
use crate::benchmark_controller::validate::{Environment, ValidatedBenchmark, protocol_name};
use crate::protocol::configured;

/// The tunnel of `protocol`, with forwards for iperf and echo to the tunnel pair's server.
#[must_use]
pub fn tunnel(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
    protocol: Protocol,
) -> MuxTunnel {
    let index = environment.key.index;
    let server = Agent {
        path: Path::Tunnel,
        end: End::Server,
    }
    .name(&benchmark.name, index);
    let one_way_delay_ms = environment.key.one_way_delay_ms;
    let wan = (one_way_delay_ms > 0).then(|| Wan {
        delay: Duration::from_millis(one_way_delay_ms.into()),
        jitter: None,
        loss: None,
        rate: None,
        backend: None,
        scope: None,
    });
    let asked = &benchmark.carrier;
    let can = configured(protocol).can();
    let agent = (benchmark.namespace.as_str(), server.as_str());
    let spec = MuxTunnelSpec {
        side: Side::Both,
        entry: benchmark.entry.clone(),
        exit: benchmark.exit.clone(),
        forwards: vec![
            forward("iperf", IPERF_PORT, agent),
            forward("echo", ECHO_PORT, agent),
        ],
        rendezvous: None,
        key: None,
        network: None,
        carrier: Some(Carrier {
            protocol,
            transport: None,
            address: None,
            public_keys: Vec::new(),
            rendezvous: None,
            web_socket: None,
            congestion_control: asked.congestion_control,
            liveness_seconds: None,
            pool: asked.pool.filter(|_| can.several_carriers),
            resume: asked.resume.filter(|_| can.resume),
            security: asked.security.clone(),
        }),
        policy: None,
        timeouts: None,
        tuning: Some(Tuning {
            profile: Some(environment.profile),
            ..Tuning::default()
        }),
        wan,
    };
    MuxTunnel {
        metadata: owned(
            benchmark,
            names::tunnel(&benchmark.name, index, protocol_name(protocol)),
            environment_labels(&benchmark.name, TUNNEL, index),
        ),
        spec,
        status: None,
    }
}

/// The tunnel of `protocol` that carries IP packets between the addresses of its gateways. The
/// agents of this tunnel run in the gateways' pods.
#[must_use]
pub fn network(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
    protocol: Protocol,
) -> MuxTunnel {
    let [entry, exit] = [End::Client, End::Server].map(|end| end.network_address().to_owned());
    let mut tunnel = tunnel(benchmark, environment, protocol);
    tunnel.metadata.name = Some(names::network(&benchmark.name, environment.key.index));
    tunnel.spec.forwards.clear();
    tunnel.spec.network = Some(Network {
        entry_cidrs: vec![format!("{entry}/32")],
        exit_cidrs: vec![format!("{exit}/32")],
        entry_addresses: vec![entry],
        exit_addresses: vec![exit],
        ..Network::default()
    });
    tunnel
}

/// A forward that accepts only clients of `namespace`, where the agents run, even if the entry's
/// Service is reachable from outside the cluster.
fn forward(name: &str, port: u16, (namespace, server): (&str, &str)) -> Forward {
    Forward {
        name: name.to_owned(),
        direction: None,
        listen: Listen {
            port,
            protocol: None,
            from: Some(ListenFrom {
                namespaces: vec![namespace.to_owned()],
                ..ListenFrom::default()
            }),
        },
        target: Some(Target {
            service: Some(ServiceTarget {
                name: server.to_owned(),
                namespace: None,
                port: IntOrString::Int(port.into()),
            }),
            address: None,
        }),
        auth: None,
        proxy_protocol: None,
        priority: None,
        limits: None,
    }
}

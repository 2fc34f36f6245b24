//! The MuxTunnels of an environment. There is one MuxTunnel per protocol, each with forwards to the
//! same server. If the path Network is measured, one further MuxTunnel carries IP packets.

use muxtunnel_bench_api::{ECHO_PORT, IPERF_PORT, Path};
use muxtunnel_crds::{
    Carrier, ExitCarrier, Forward, ListenPort, MuxTunnel, MuxTunnelSpec, Network, NetworkEnd,
    NetworkSettings, Protocol, Security, ServiceRef, Target, Transport, Tuning, WanEmulation,
};
use muxtunnel_gateway_config::Cidr;

use super::owned;
use crate::benchmark_controller::names::{self, Agent, End, TUNNEL, environment_labels};
use crate::benchmark_controller::validate::{Environment, ValidatedBenchmark};

/// The tunnel of `protocol`, with forwards for iperf and echo to the tunnel pair's server.
pub fn tunnel(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
    protocol: Protocol,
) -> MuxTunnel {
    let index = environment.key.index;
    let server = Agent::new(Path::Tunnel, End::Server).name(&benchmark.name, index);
    let delay_milliseconds = environment.key.one_way_delay_ms;
    let wan_emulation = (delay_milliseconds > 0).then_some(WanEmulation {
        delay_milliseconds,
        jitter_milliseconds: None,
        loss_ppm: None,
        bits_per_second: None,
        backend: None,
        scope: None,
    });
    let (own, asked) = (&benchmark.tunnel, benchmark.tunnel.carrier.clone());
    let asked = asked.unwrap_or_default();
    let mode = own.security.and_then(|asked| asked.mode);
    let can = protocol.can();
    let transport = asked.transport.filter(|_| protocol == Protocol::Native);
    let spec = MuxTunnelSpec {
        class_name: benchmark.class_name.clone(),
        entry: own.entry.clone(),
        exit: own.exit.clone(),
        forwards: vec![
            forward("iperf", IPERF_PORT, &server),
            forward("echo", ECHO_PORT, &server),
        ],
        security: Some(Security {
            mode: Some(mode.unwrap_or_default()),
            certificates: None,
        }),
        carrier: Some(Carrier {
            connection: ExitCarrier {
                protocol: Some(protocol),
                transport,
                web_socket: None,
                // KCP has a congestion control of its own.
                congestion_control: (asked.congestion_control)
                    .filter(|_| transport != Some(Transport::Kcp)),
                liveness_seconds: asked.liveness_seconds,
            },
            pool: asked.pool.filter(|_| can.several_carriers),
            resume: asked.resume.filter(|_| can.resume),
        }),
        tuning: Some(Tuning {
            profile: Some(environment.profile.into()),
            ..Tuning::default()
        }),
        wan_emulation,
        ..MuxTunnelSpec::default()
    };
    MuxTunnel {
        metadata: owned(
            benchmark,
            names::tunnel(&benchmark.name, index, protocol.as_str()),
            environment_labels(&benchmark.name, TUNNEL, index),
        ),
        spec,
        status: None,
    }
}

/// The tunnel of `protocol` that carries IP packets between the addresses of its gateways. The
/// agents of this tunnel run in the gateways' pods.
pub fn network(
    benchmark: &ValidatedBenchmark,
    environment: &Environment,
    protocol: Protocol,
) -> MuxTunnel {
    let [entry, exit] = [End::Client, End::Server].map(|end| {
        let address = end.network_address().into();
        NetworkEnd {
            cidrs: vec![Cidr::single(address)],
            addresses: vec![address],
            forwarding: None,
        }
    });
    let mut tunnel = tunnel(benchmark, environment, protocol);
    tunnel.metadata.name = Some(names::network(&benchmark.name, environment.key.index));
    tunnel.spec.forwards.clear();
    tunnel.spec.network = Some(Box::new(Network {
        entry,
        exit,
        settings: NetworkSettings::default(),
    }));
    tunnel
}

/// A forward to the Service `server`. Its clients are the pods of the benchmark's namespace, where
/// the agents run.
fn forward(name: &str, port: u16, server: &str) -> Forward {
    Forward {
        listen: ListenPort {
            name: name.to_owned(),
            port,
            ..ListenPort::default()
        },
        targets: vec![Target {
            service_ref: Some(ServiceRef {
                name: server.to_owned(),
                namespace: None,
            }),
            host: None,
            port,
        }],
        ..Forward::default()
    }
}

//! The compared systems: a direct connection, MuxTunnel's relays as controls, its gateways, and the
//! installed peers. Each kind of system has a file that starts its processes.
//!
//! A system forwards the ports of all [`Service`]s, or carries IP packets between client and
//! server. A system counts as started after an exchange with the echo server through it. The lab
//! runs one system at a time, so all systems use the same ports.

mod chisel;
mod envoy;
mod frp;
mod go_http2;
mod haproxy;
mod jetsocat;
mod launch;
mod muxgate;
mod openssh;
mod openvpn;
mod proxy;
mod quinn;
mod rathole;
mod relay;
mod running;
mod service;
mod wireguard;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::{
    load::wire::Request,
    network::Network,
    process::{Process, find, wait_until},
    topology::{Addresses, Place, TUNNEL, Topology},
};

pub(crate) use launch::{Limits, Muxgate};
pub(crate) use proxy::Proxy;
pub(crate) use running::Running;
pub(crate) use service::Service;

use launch::{Interface, Launch, Setup};
use muxgate::{Gateways, Packets, Security, Way};
use openssh::Forwards;

/// The port of the carriers.
pub(crate) const CARRIER_PORT: u16 = 6100;
/// The entry's port for clients that name their target.
const PROXY_PORT: u16 = 6180;

/// Time-out for the first exchange through a system.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// Time-out of one exchange.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The compared systems, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum System {
    /// A direct connection without gateways.
    Direct,
    /// Two relays in a row without a mux, which copy through a buffer.
    RelayCopy,
    /// Two relays in a row without a mux, which splice.
    RelaySplice,
    /// Bulk over quinn alone, without gateways and clients.
    Quinn,
    /// Two gateways with the JMUX protocol.
    MuxgateJmux,
    /// Two gateways with the native protocol.
    MuxgateNative,
    /// The native protocol with four carriers per session.
    MuxgateNativeX4,
    /// The native protocol with sixteen carriers per session.
    MuxgateNativeX16,
    /// The native protocol with two workers.
    #[value(name = "muxgate-native-workers-2")]
    MuxgateNativeWorkers2,
    /// The native protocol with eight workers.
    #[value(name = "muxgate-native-workers-8")]
    MuxgateNativeWorkers8,
    /// All settings have their defaults: public keys, all workers, as many carriers as the work needs.
    MuxgateDefault,
    /// The native protocol with one carrier; streams end with their carrier.
    MuxgateNoResume,
    /// The native protocol without splicing, the baseline for encryption.
    MuxgateCopy,
    /// The native protocol over KCP, which runs on UDP.
    MuxgateKcp,
    /// The native protocol over KCP with mutual TLS 1.3.
    MuxgateKcpTls,
    /// The native protocol over mutual TLS 1.3.
    MuxgateTls,
    /// Mutual TLS 1.3; clients use a SOCKS 5 proxy at the entry.
    MuxgateTlsSocks5,
    /// Mutual TLS 1.3; the gateway on the target's side dials the carriers.
    MuxgateTlsReverse,
    /// The native protocol over TLS 1.3 with raw public keys.
    MuxgateKeys,
    /// Public keys, with two workers.
    #[value(name = "muxgate-keys-workers-2")]
    MuxgateKeysWorkers2,
    /// Public keys, with eight workers.
    #[value(name = "muxgate-keys-workers-8")]
    MuxgateKeysWorkers8,
    /// Public keys; clients use a SOCKS 5 proxy at the entry.
    MuxgateKeysSocks5,
    /// Public keys; the gateway on the target's side dials the carriers.
    MuxgateKeysReverse,
    /// Plain carriers; clients use a SOCKS 5 proxy at the entry.
    MuxgateSocks5,
    /// Plain carriers; clients use an HTTP proxy at the entry.
    MuxgateHttp,
    /// Plain carriers; the gateway on the target's side dials them.
    MuxgateReverse,
    /// Public keys; both gateways dial a rendezvous, which cannot read the payload.
    MuxgateKeysVisitor,
    /// QUIC, which runs on UDP and includes mutual TLS.
    MuxgateQuic,
    /// QUIC with BBR, which does not treat loss as congestion.
    MuxgateQuicBbr,
    /// QUIC; the gateway on the target's side dials the carriers.
    MuxgateQuicReverse,
    /// HTTP/3, which runs on QUIC.
    MuxgateHttp3,
    /// HTTP/2 without TLS.
    MuxgateH2c,
    /// HTTP/2 over mutual TLS.
    MuxgateHttp2,
    /// HTTP/2 over mutual TLS; the gateway on the target's side dials the carriers.
    MuxgateHttp2Reverse,
    MuxgateHbone,
    /// SSH, with the same cipher as the OpenSSH peers.
    MuxgateSsh,
    /// SSH; the gateway on the target's side dials the carriers.
    MuxgateSshReverse,
    /// IP packets over the native protocol with one plain carrier.
    MuxgateTun,
    /// IP packets over the native protocol with mutual TLS 1.3.
    MuxgateTunTls,
    /// IP packets in QUIC datagrams.
    MuxgateTunQuic,
    /// IP packets over a plain carrier. The kernel segments TCP before the gateway reads the
    /// packets.
    MuxgateTunNoOffload,
    /// IP packets over plain carriers; each of two queues has a worker and a session.
    #[value(name = "muxgate-tun-queues-2")]
    MuxgateTunQueues2,
    /// IP packets over plain carriers, with four queues.
    #[value(name = "muxgate-tun-queues-4")]
    MuxgateTunQueues4,
    /// Two jetsocat processes.
    Jetsocat,
    /// Two HAProxy processes in a row, which splice.
    Haproxy,
    /// An OpenSSH local forward (-L).
    Openssh,
    /// The SOCKS 5 proxy of OpenSSH (-D).
    OpensshDynamic,
    /// An OpenSSH remote forward (-R).
    OpensshReverse,
    /// A rathole server and client.
    Rathole,
    /// A rathole server and client, over Noise.
    RatholeNoise,
    /// frps and frpc.
    Frp,
    /// frps and frpc, over TLS.
    FrpTls,
    /// frpc and its visitor, through frps.
    FrpStcp,
    /// frpc and its visitor, with payload that frps cannot read.
    FrpStcpEncrypted,
    /// A chisel server and client.
    Chisel,
    /// Two Envoys: TCP in HTTP/2 CONNECT, without TLS.
    EnvoyH2c,
    /// Two Envoys: TCP in HTTP/2 CONNECT over mutual TLS, like HBONE.
    EnvoyHttp2,
    /// Two programs that use Go's net/http: TCP in HTTP/2 CONNECT, without TLS.
    GoH2c,
    /// Two programs that use Go's net/http: TCP in HTTP/2 CONNECT over mutual TLS.
    GoHttp2,
    /// WireGuard in user space, in Debian's version.
    WireguardGo,
    /// WireGuard in user space, in a newer version.
    WireguardGoCurrent,
    Openvpn,
}

impl System {
    /// The name in tables, JSON lines and flags. clap derives the name from the variant.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether the system's program is installed. MuxTunnel's own programs are always installed.
    pub(crate) fn is_found(self) -> bool {
        let name = self.name();
        let program = match self {
            Self::Jetsocat | Self::Haproxy | Self::Chisel | Self::Openvpn => &*name,
            Self::Openssh | Self::OpensshDynamic | Self::OpensshReverse => openssh::SSHD,
            Self::Rathole | Self::RatholeNoise => "rathole",
            Self::Frp | Self::FrpTls | Self::FrpStcp | Self::FrpStcpEncrypted => "frps",
            Self::EnvoyH2c | Self::EnvoyHttp2 => "envoy",
            Self::GoH2c | Self::GoHttp2 => "go-http2",
            Self::WireguardGo | Self::WireguardGoCurrent => {
                return wireguard::is_found(&name);
            }
            _ => return true,
        };
        find(Path::new(program)).is_ok()
    }

    /// Whether the system is an optional peer: if its program is missing, the run does not fail.
    pub(crate) fn is_peer(self) -> bool {
        self >= Self::Jetsocat
    }

    /// Whether the system consists of muxgate gateways.
    pub(crate) fn is_muxgate(self) -> bool {
        self.gateways().is_some()
    }

    /// Whether the system consists of muxgate gateways that splice payload.
    pub(crate) fn splices(self) -> bool {
        self.gateways().is_some_and(Gateways::splices)
    }

    /// Whether the system carries IP packets. If so, clients connect to the server's address, and
    /// the system forwards no port.
    pub(crate) fn carries_packets(self) -> bool {
        match self.gateways() {
            Some(gateways) => gateways.packets.is_some(),
            None => matches!(
                self,
                Self::WireguardGo | Self::WireguardGoCurrent | Self::Openvpn
            ),
        }
    }

    /// The number of carriers of a session; `None` if streams end with their carrier, or if the number
    /// varies.
    pub(crate) fn resumed_carriers(self) -> Option<u32> {
        let gateways = self.gateways().filter(|gateways| {
            gateways.resume
                && gateways.protocol == Gateways::PLAIN.protocol
                && gateways.packets.is_none()
        })?;
        Some(gateways.carriers?.into())
    }

    /// The settings of the gateways; `None` for other systems.
    fn gateways(self) -> Option<Gateways> {
        let tls = Gateways::secured(Security::Certificates);
        let keys = Gateways::secured(Security::PublicKeys);
        let plain = Gateways::PLAIN;
        Some(match self {
            Self::MuxgateJmux => plain.speaking("JMUX"),
            Self::MuxgateNative => plain,
            Self::MuxgateNativeX4 => Gateways {
                carriers: Some(4),
                ..plain
            },
            Self::MuxgateNativeX16 => Gateways {
                carriers: Some(16),
                ..plain
            },
            Self::MuxgateNativeWorkers2 => plain.on_workers(2),
            Self::MuxgateNativeWorkers8 => plain.on_workers(8),
            Self::MuxgateDefault => Gateways {
                workers: None,
                carriers: None,
                ..keys
            },
            Self::MuxgateNoResume => Gateways {
                resume: false,
                ..plain
            },
            Self::MuxgateCopy => Gateways {
                splice: false,
                ..plain
            },
            Self::MuxgateKcp => plain.over("KCP"),
            Self::MuxgateKcpTls => tls.over("KCP"),
            Self::MuxgateTls => tls,
            Self::MuxgateTlsSocks5 => tls.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateTlsReverse => tls.by(Way::Reverse),
            Self::MuxgateKeys => keys,
            Self::MuxgateKeysWorkers2 => keys.on_workers(2),
            Self::MuxgateKeysWorkers8 => keys.on_workers(8),
            Self::MuxgateKeysSocks5 => keys.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateKeysReverse => keys.by(Way::Reverse),
            Self::MuxgateSocks5 => plain.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateHttp => plain.by(Way::Dynamic(Proxy::Http)),
            Self::MuxgateReverse => plain.by(Way::Reverse),
            Self::MuxgateKeysVisitor => keys.by(Way::Visitor),
            Self::MuxgateQuic => tls.speaking("QUIC"),
            Self::MuxgateQuicBbr => Gateways {
                congestion_control: "BBR",
                ..tls.speaking("QUIC")
            },
            Self::MuxgateQuicReverse => tls.speaking("QUIC").by(Way::Reverse),
            Self::MuxgateHttp3 => tls.speaking("HTTP3"),
            Self::MuxgateH2c => plain.speaking("HTTP2"),
            Self::MuxgateHttp2 => tls.speaking("HTTP2"),
            Self::MuxgateHttp2Reverse => tls.speaking("HTTP2").by(Way::Reverse),
            Self::MuxgateHbone => tls.speaking("HBONE"),
            Self::MuxgateSsh => Gateways::secured(Security::Ssh).speaking("SSH"),
            Self::MuxgateSshReverse => {
                (Gateways::secured(Security::Ssh).speaking("SSH")).by(Way::Reverse)
            }
            Self::MuxgateTun => plain.carrying(Packets::USUAL),
            Self::MuxgateTunTls => tls.carrying(Packets::USUAL),
            Self::MuxgateTunQuic => tls.speaking("QUIC").carrying(Packets::IN_DATAGRAMS),
            Self::MuxgateTunNoOffload => plain.carrying(Packets {
                offloads: false,
                ..Packets::USUAL
            }),
            Self::MuxgateTunQueues2 => plain.carrying(Packets::in_queues(2)),
            Self::MuxgateTunQueues4 => plain.carrying(Packets::in_queues(4)),
            _ => return None,
        })
    }

    /// The proxy protocol of the system's clients.
    fn proxy(self) -> Option<Proxy> {
        match (self, self.gateways().map(|gateways| gateways.way)) {
            (Self::OpensshDynamic, _) => Some(Proxy::Socks5),
            (_, Some(Way::Dynamic(proxy))) => Some(proxy),
            _ => None,
        }
    }

    /// The protocol of the carriers; `None` for systems without gateways.
    pub(crate) fn protocol(self) -> Option<&'static str> {
        match self.gateways()?.protocol {
            "JMUX" => Some("jmux"),
            "HTTP2" => Some("http2"),
            "HBONE" => Some("hbone"),
            "QUIC" => Some("quic"),
            "HTTP3" => Some("http3"),
            "SSH" => Some("ssh"),
            _ => Some("native"),
        }
    }

    /// The address that clients connect to for a service.
    pub(crate) fn address(self, service: Service, addresses: &Addresses) -> SocketAddr {
        if self.carries_packets() {
            let [_, server] = TUNNEL;
            return SocketAddr::from((server, service.port()));
        }
        match (self, self.proxy()) {
            (Self::Direct, _) => SocketAddr::from((addresses.server, service.port())),
            (_, Some(_)) => SocketAddr::from((addresses.target, service.port())),
            (_, None) => SocketAddr::from((addresses.entry, service.entry_port())),
        }
    }

    fn launches(self, setup: &Setup<'_>) -> Result<Vec<Launch>> {
        match self {
            Self::Direct => Ok(Vec::new()),
            Self::RelayCopy => relay::launches(setup, "copy"),
            Self::RelaySplice => relay::launches(setup, "splice"),
            Self::Quinn => quinn::launches(setup),
            Self::Jetsocat => Ok(jetsocat::launches(setup)),
            Self::Haproxy => haproxy::launches(setup),
            Self::Openssh => openssh::launches(setup, Forwards::Local),
            Self::OpensshDynamic => openssh::launches(setup, Forwards::Dynamic),
            Self::OpensshReverse => openssh::launches(setup, Forwards::Remote),
            Self::Rathole => rathole::launches(setup, false),
            Self::RatholeNoise => rathole::launches(setup, true),
            Self::Frp => frp::launches(setup, false),
            Self::FrpTls => frp::launches(setup, true),
            Self::FrpStcp => frp::visitor_launches(setup, false),
            Self::FrpStcpEncrypted => frp::visitor_launches(setup, true),
            Self::Chisel => Ok(chisel::launches(setup)),
            Self::EnvoyH2c => envoy::launches(setup, false),
            Self::EnvoyHttp2 => envoy::launches(setup, true),
            Self::GoH2c => go_http2::launches(setup, false),
            Self::GoHttp2 => go_http2::launches(setup, true),
            Self::WireguardGo | Self::WireguardGoCurrent => {
                wireguard::launches(setup, &self.name())
            }
            Self::Openvpn => openvpn::launches(setup),
            _ => {
                let gateways = self.gateways().context("the system has no start command")?;
                gateways.launches(setup)
            }
        }
    }

    /// Starts the system's processes, with their files and logs in `folder`, and waits until it
    /// carries bytes.
    ///
    /// # Errors
    /// `not found` if a program is missing. Otherwise the failure, with the folder of the logs.
    pub(crate) fn start(
        self,
        network: &Network,
        muxgate: Muxgate<'_>,
        limits: Limits,
        folder: &Path,
    ) -> Result<Running> {
        ensure!(
            !self.carries_packets() || network.topology != Topology::Loopback,
            "{} sends IP packets between two namespaces, but loopback has only one: use --topologies veth or a topology with wan in its name",
            self.name()
        );
        network.tune(self == Self::Direct)?;
        let addresses = network.topology.addresses();
        let setup = Setup {
            addresses,
            muxgate,
            limits,
            folder,
        };
        let mut running = Running {
            system: self,
            processes: Vec::new(),
            client_prefix: match self.proxy() {
                Some(proxy) => proxy::prefix(&setup, proxy)?,
                None => Vec::new(),
            },
        };
        let launches = self.launches(&setup)?;
        for launch in &launches {
            let log = folder.join(format!("{}-{}.log", self.name(), launch.name));
            let namespace = network.namespace(launch.place);
            let mut process = Process::start(namespace, &launch.program, &launch.arguments, &log)?;
            if let Some(port) = launch.listens {
                wait_until(START_PATIENCE, "a process to listen", || {
                    ensure!(!process.has_ended(), "the process has ended");
                    network.listens(launch.place, port)
                })
                .with_context(|| format!("see {}", log.display()))?;
            }
            running.processes.push((launch.place, process));
        }
        for launch in &launches {
            if let Some(interface) = launch.interface {
                running.move_interface(network, launch.place, interface)?;
            }
        }
        if self == Self::Quinn {
            return Ok(running);
        }
        // Gateways with a proxy also have plain forwards.
        let echo = match self {
            Self::Direct => self.address(Service::Load, &addresses),
            _ if self.carries_packets() => self.address(Service::Load, &addresses),
            _ => SocketAddr::from((addresses.entry, Service::Load.entry_port())),
        };
        let client = network.namespace(Place::Client);
        wait_until(START_PATIENCE, "an exchange through the system", || {
            running.still_runs()?;
            Ok(client.enter(|| exchange(echo))?.is_ok())
        })
        .with_context(|| format!("see {}", folder.display()))?;
        Ok(running)
    }
}

fn exchange(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, ATTEMPT_TIMEOUT)?;
    stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    stream.write_all(&[Request::Echo as u8, b'x'])?;
    stream.read_exact(&mut [0])
}

/// `ADDRESS:PORT` for `address` and the service's port on the entry.
fn entry_at(address: Ipv4Addr, service: Service) -> String {
    crate::topology::at(address, service.entry_port())
}

/// `ADDRESS:PORT` for `address` and the service's port on the server.
fn target_at(address: Ipv4Addr, service: Service) -> String {
    crate::topology::at(address, service.port())
}

#[cfg(test)]
mod tests;

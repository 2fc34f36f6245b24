//! What is compared: a direct connection, our own relays as controls, our gateways, and the peers found
//! on this machine; one file each says how it is started.
//!
//! A system forwards the ports of all [`Service`]s, or carries IP packets between client and server; it is up when an exchange
//! through it to the echo server has worked. One system runs at a time, so all use the same ports. A new peer starts here.

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
mod service;
mod wireguard;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
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

pub(crate) use launch::Limits;
pub(crate) use proxy::Proxy;
pub(crate) use service::Service;

use launch::{Interface, Launch, Setup};
use muxgate::{Gateways, Packets, Security, Way};
use openssh::Forwards;

/// The port on which entry and exit meet.
pub(crate) const CARRIER_PORT: u16 = 6100;
/// The entry's port for clients that say themselves where they want to go.
const PROXY_PORT: u16 = 6180;

/// How long a system may take until the first exchange works.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// How long an attempt waits for the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// One of the systems that are compared, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum System {
    /// No gateway at all.
    Direct,
    /// Our own relay without a mux, two in a row, copying.
    RelayCopy,
    /// The same, splicing.
    RelaySplice,
    /// Bulk over quinn alone, without anything in front of it or behind.
    Quinn,
    /// A pair of our gateways with the JMUX protocol.
    MuxgateJmux,
    /// A pair of our gateways with the native protocol.
    MuxgateNative,
    /// The same with four carriers a session.
    MuxgateNativeX4,
    /// The same with one carrier, with which streams end.
    MuxgateNoResume,
    /// The native protocol without splicing: what encryption is compared with.
    MuxgateCopy,
    /// Over KCP, which is over UDP.
    MuxgateKcp,
    /// The same, and mutual TLS 1.3 over it.
    MuxgateKcpTls,
    /// Over mutual TLS 1.3.
    MuxgateTls,
    /// The same, clients asking a SOCKS 5 proxy at the entry.
    MuxgateTlsSocks5,
    /// The same, the target's side dialling the carriers.
    MuxgateTlsReverse,
    /// Over Noise.
    MuxgateNoise,
    /// The same, clients asking a SOCKS 5 proxy at the entry.
    MuxgateNoiseSocks5,
    /// The same, the target's side dialling the carriers.
    MuxgateNoiseReverse,
    /// Plain carriers, clients asking a SOCKS 5 proxy at the entry.
    MuxgateSocks5,
    /// Plain carriers, clients asking an HTTP proxy at the entry.
    MuxgateHttp,
    /// Plain carriers, the target's side dialling them.
    MuxgateReverse,
    /// Both sides dialling a rendezvous.
    MuxgateVisitor,
    /// The same over Noise, which the rendezvous cannot read.
    MuxgateNoiseVisitor,
    /// QUIC, which is over UDP with mutual TLS inside.
    MuxgateQuic,
    /// The same with BBR, which takes no loss for congestion.
    MuxgateQuicBbr,
    /// QUIC with the target's side dialling.
    MuxgateQuicReverse,
    /// HTTP/3, which is over QUIC.
    MuxgateHttp3,
    /// HTTP/2 without TLS.
    MuxgateH2c,
    /// HTTP/2 over mutual TLS.
    MuxgateHttp2,
    /// The same, the target's side dialling the carriers.
    MuxgateHttp2Reverse,
    /// HBONE.
    MuxgateHbone,
    /// SSH, by the cipher that OpenSSH is compared with.
    MuxgateSsh,
    /// The same, the target's side dialling.
    MuxgateSshReverse,
    /// IP packets over the native protocol and one plain carrier.
    MuxgateTun,
    /// The same over mutual TLS 1.3.
    MuxgateTunTls,
    /// IP packets in QUIC datagrams.
    MuxgateTunQuic,
    /// The same as the plain one, where the kernel cuts TCP into segments before it hands them over.
    MuxgateTunNoOffload,
    /// The same as the plain one, where the interface has two queues, each with a worker and a session.
    MuxgateTunQueues2,
    /// The same with four queues.
    MuxgateTunQueues4,
    /// A pair of jetsocat processes.
    Jetsocat,
    /// HAProxy, two in a row, splicing.
    Haproxy,
    /// A forward of OpenSSH (-L).
    Openssh,
    /// The same by its SOCKS 5 proxy (-D).
    OpensshDynamic,
    /// The same from the other side (-R).
    OpensshReverse,
    /// A rathole server and client.
    Rathole,
    /// The same over Noise.
    RatholeNoise,
    /// frps and frpc.
    Frp,
    /// The same over TLS.
    FrpTls,
    /// frpc and its visitor, by frps between them.
    FrpStcp,
    /// The same, which frps cannot read.
    FrpStcpEncrypted,
    /// A chisel server and client.
    Chisel,
    /// A pair of Envoys, TCP in HTTP/2 CONNECT, without TLS.
    EnvoyH2c,
    /// The same over mutual TLS, as HBONE is.
    EnvoyHttp2,
    /// A pair of programs made of Go's net/http, TCP in HTTP/2 CONNECT, without TLS.
    GoH2c,
    /// The same over mutual TLS.
    GoHttp2,
    /// WireGuard in user space, as Debian has it.
    WireguardGo,
    /// The same, newer.
    WireguardGoCurrent,
    /// OpenVPN.
    Openvpn,
}

impl System {
    /// The name in tables, JSON lines and flags.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::RelayCopy => "relay-copy",
            Self::RelaySplice => "relay-splice",
            Self::Quinn => "quinn",
            Self::MuxgateJmux => "muxgate-jmux",
            Self::MuxgateNative => "muxgate-native",
            Self::MuxgateNativeX4 => "muxgate-native-x4",
            Self::MuxgateNoResume => "muxgate-no-resume",
            Self::MuxgateCopy => "muxgate-copy",
            Self::MuxgateKcp => "muxgate-kcp",
            Self::MuxgateKcpTls => "muxgate-kcp-tls",
            Self::MuxgateTls => "muxgate-tls",
            Self::MuxgateTlsSocks5 => "muxgate-tls-socks5",
            Self::MuxgateTlsReverse => "muxgate-tls-reverse",
            Self::MuxgateNoise => "muxgate-noise",
            Self::MuxgateNoiseSocks5 => "muxgate-noise-socks5",
            Self::MuxgateNoiseReverse => "muxgate-noise-reverse",
            Self::MuxgateSocks5 => "muxgate-socks5",
            Self::MuxgateHttp => "muxgate-http",
            Self::MuxgateReverse => "muxgate-reverse",
            Self::MuxgateVisitor => "muxgate-visitor",
            Self::MuxgateNoiseVisitor => "muxgate-noise-visitor",
            Self::MuxgateQuic => "muxgate-quic",
            Self::MuxgateQuicBbr => "muxgate-quic-bbr",
            Self::MuxgateQuicReverse => "muxgate-quic-reverse",
            Self::MuxgateHttp3 => "muxgate-http3",
            Self::MuxgateH2c => "muxgate-h2c",
            Self::MuxgateHttp2 => "muxgate-http2",
            Self::MuxgateHttp2Reverse => "muxgate-http2-reverse",
            Self::MuxgateHbone => "muxgate-hbone",
            Self::MuxgateSsh => "muxgate-ssh",
            Self::MuxgateSshReverse => "muxgate-ssh-reverse",
            Self::MuxgateTun => "muxgate-tun",
            Self::MuxgateTunTls => "muxgate-tun-tls",
            Self::MuxgateTunQuic => "muxgate-tun-quic",
            Self::MuxgateTunNoOffload => "muxgate-tun-no-offload",
            Self::MuxgateTunQueues2 => "muxgate-tun-queues-2",
            Self::MuxgateTunQueues4 => "muxgate-tun-queues-4",
            Self::Jetsocat => "jetsocat",
            Self::Haproxy => "haproxy",
            Self::Openssh => "openssh",
            Self::OpensshDynamic => "openssh-dynamic",
            Self::OpensshReverse => "openssh-reverse",
            Self::Rathole => "rathole",
            Self::RatholeNoise => "rathole-noise",
            Self::Frp => "frp",
            Self::FrpTls => "frp-tls",
            Self::FrpStcp => "frp-stcp",
            Self::FrpStcpEncrypted => "frp-stcp-encrypted",
            Self::Chisel => "chisel",
            Self::EnvoyH2c => "envoy-h2c",
            Self::EnvoyHttp2 => "envoy-http2",
            Self::GoH2c => "go-h2c",
            Self::GoHttp2 => "go-http2",
            Self::WireguardGo => "wireguard-go",
            Self::WireguardGoCurrent => "wireguard-go-current",
            Self::Openvpn => "openvpn",
        }
    }

    /// Whether its program is installed; what is our own always is.
    pub(crate) fn is_found(self) -> bool {
        let program = match self {
            Self::Jetsocat | Self::Haproxy | Self::Chisel | Self::Openvpn => self.name(),
            Self::Openssh | Self::OpensshDynamic | Self::OpensshReverse => openssh::SSHD,
            Self::Rathole | Self::RatholeNoise => "rathole",
            Self::Frp | Self::FrpTls | Self::FrpStcp | Self::FrpStcpEncrypted => "frps",
            Self::EnvoyH2c | Self::EnvoyHttp2 => "envoy",
            Self::GoH2c | Self::GoHttp2 => "go-http2",
            Self::WireguardGo | Self::WireguardGoCurrent => {
                return wireguard::is_found(self.name());
            }
            _ => return true,
        };
        find(Path::new(program)).is_ok()
    }

    /// Whether a missing program is a row of the table and no failure: peers are optional.
    pub(crate) fn is_peer(self) -> bool {
        self >= Self::Jetsocat
    }

    /// Whether our gateways are in it.
    pub(crate) fn is_muxgate(self) -> bool {
        self.gateways().is_some()
    }

    /// Whether it carries IP packets, so that clients connect to the server's address and no port is forwarded.
    pub(crate) fn carries_packets(self) -> bool {
        match self.gateways() {
            Some(gateways) => gateways.packets.is_some(),
            None => matches!(
                self,
                Self::WireguardGo | Self::WireguardGoCurrent | Self::Openvpn
            ),
        }
    }

    /// How many carriers its session has, where streams outlive them.
    pub(crate) fn resumed_carriers(self) -> Option<u32> {
        let gateways = self.gateways().filter(|gateways| {
            gateways.resume
                && gateways.protocol == Gateways::PLAIN.protocol
                && gateways.packets.is_none()
        })?;
        Some(gateways.carriers.into())
    }

    /// How it is made of our gateways.
    fn gateways(self) -> Option<Gateways> {
        let tls = Gateways::secured(Security::MutualTls);
        let noise = Gateways::secured(Security::Noise);
        let plain = Gateways::PLAIN;
        Some(match self {
            Self::MuxgateJmux => plain.speaking("Jmux"),
            Self::MuxgateNative => plain,
            Self::MuxgateNativeX4 => Gateways {
                carriers: 4,
                ..plain
            },
            Self::MuxgateNoResume => Gateways {
                resume: false,
                ..plain
            },
            Self::MuxgateCopy => Gateways {
                splice: false,
                ..plain
            },
            Self::MuxgateKcp => plain.over("Kcp"),
            Self::MuxgateKcpTls => tls.over("Kcp"),
            Self::MuxgateTls => tls,
            Self::MuxgateTlsSocks5 => tls.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateTlsReverse => tls.by(Way::Reverse),
            Self::MuxgateNoise => noise,
            Self::MuxgateNoiseSocks5 => noise.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateNoiseReverse => noise.by(Way::Reverse),
            Self::MuxgateSocks5 => plain.by(Way::Dynamic(Proxy::Socks5)),
            Self::MuxgateHttp => plain.by(Way::Dynamic(Proxy::Http)),
            Self::MuxgateReverse => plain.by(Way::Reverse),
            Self::MuxgateVisitor => plain.by(Way::Visitor),
            Self::MuxgateNoiseVisitor => noise.by(Way::Visitor),
            Self::MuxgateQuic => tls.speaking("QUIC"),
            Self::MuxgateQuicBbr => Gateways {
                congestion_control: "Bbr",
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
            Self::MuxgateTunQuic => tls.speaking("QUIC").carrying(Packets::USUAL),
            Self::MuxgateTunNoOffload => plain.carrying(Packets {
                offloads: false,
                ..Packets::USUAL
            }),
            Self::MuxgateTunQueues2 => plain.carrying(Packets::in_queues(2)),
            Self::MuxgateTunQueues4 => plain.carrying(Packets::in_queues(4)),
            _ => return None,
        })
    }

    /// The proxy that its clients ask.
    fn proxy(self) -> Option<Proxy> {
        match (self, self.gateways().map(|gateways| gateways.way)) {
            (Self::OpensshDynamic, _) => Some(Proxy::Socks5),
            (_, Some(Way::Dynamic(proxy))) => Some(proxy),
            _ => None,
        }
    }

    /// The protocol of the carriers, for our gateways.
    pub(crate) fn protocol(self) -> Option<&'static str> {
        match self.gateways()?.protocol {
            "Jmux" => Some("jmux"),
            "HTTP2" => Some("http2"),
            "HBONE" => Some("hbone"),
            "QUIC" => Some("quic"),
            "HTTP3" => Some("http3"),
            "SSH" => Some("ssh"),
            _ => Some("native"),
        }
    }

    /// Where clients connect to for a service.
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
            Self::WireguardGo | Self::WireguardGoCurrent => wireguard::launches(setup, self.name()),
            Self::Openvpn => openvpn::launches(setup),
            _ => {
                let gateways = self.gateways().context("nothing says how it is started")?;
                gateways.launches(setup)
            }
        }
    }

    /// Starts the system's processes, with their files and logs in `folder`, and waits until it
    /// carries bytes.
    ///
    /// # Errors
    /// `not found` when a program is missing; else what failed, with the folder of the logs.
    pub(crate) fn start(
        self,
        network: &Network,
        muxgate: &Path,
        limits: Limits,
        folder: &Path,
    ) -> Result<Running> {
        ensure!(
            !self.carries_packets() || network.topology != Topology::Loopback,
            "IP packets go from one namespace to another; choose --topologies veth or one of wan"
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
                wait_until(START_PATIENCE, "its port to listen", || {
                    ensure!(!process.has_ended(), "it has ended");
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
        // Proxies stand beside forwards of the same gateways.
        let echo = match self {
            Self::Direct => self.address(Service::Load, &addresses),
            _ if self.carries_packets() => self.address(Service::Load, &addresses),
            _ => SocketAddr::from((addresses.entry, Service::Load.entry_port())),
        };
        let client = network.namespace(Place::Client);
        wait_until(START_PATIENCE, "an exchange through it", || {
            running.still_runs()?;
            Ok(client.enter(|| exchange(echo))?.is_ok())
        })
        .with_context(|| format!("see {}", folder.display()))?;
        Ok(running)
    }
}

/// The processes of a system; they end with this value.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) system: System,
    processes: Vec<(Place, Process)>,
    client_prefix: Vec<String>,
}

impl Running {
    /// The command line of a client of it that runs `program`.
    pub(crate) fn client(
        &self,
        program: &Path,
        mut arguments: Vec<String>,
    ) -> (PathBuf, Vec<String>) {
        let Some((wrapper, prefix)) = self.client_prefix.split_first() else {
            return (program.to_owned(), arguments);
        };
        arguments.insert(0, program.display().to_string());
        arguments.splice(0..0, prefix.iter().cloned());
        (wrapper.into(), arguments)
    }

    /// The process ids of one gateway.
    pub(crate) fn pids_at(&self, at: Place) -> Vec<u32> {
        self.processes
            .iter()
            .filter(|(place, _)| *place == at)
            .flat_map(|(_, process)| process.pids())
            .collect()
    }

    /// Whether one of them has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        let mut processes = self.processes.iter_mut();
        processes.any(|(_, process)| process.has_ended())
    }

    fn still_runs(&mut self) -> Result<()> {
        ensure!(!self.has_ended(), "one of its processes has ended");
        Ok(())
    }

    /// Moves the interface of the gateway at `place`, once it is there, to the applications of that side: they have sysctls of their
    /// own, as on hosts behind a gateway.
    fn move_interface(
        &mut self,
        network: &Network,
        place: Place,
        interface: Interface,
    ) -> Result<()> {
        let [client, server] = TUNNEL;
        let (to, address) = match place {
            Place::Exit => (Place::Server, server),
            _ => (Place::Client, client),
        };
        let (name, settings) = (Interface::NAME, interface.settings());
        wait_until(START_PATIENCE, "its interface", || {
            self.still_runs()?;
            let is_there = network.has_interface(name, place, interface.queues)?;
            if is_there {
                network.move_interface(name, [place, to], address, &settings)?;
            }
            Ok(is_there)
        })
    }

    /// The process ids of both gateways.
    pub(crate) fn pids(&self) -> Vec<u32> {
        [Place::Entry, Place::Exit]
            .map(|place| self.pids_at(place))
            .concat()
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

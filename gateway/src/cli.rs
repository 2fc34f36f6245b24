//! Parses the command line, and converts it to a configuration.

mod address;
mod bounds;
mod check;
mod choices;
mod completions;
mod config;
#[cfg(test)]
mod examples;
mod exit_status;
mod forwards;
mod help;
mod host;
mod keygen;
mod leaf;
mod log_format;
mod network;
#[cfg(test)]
mod parity;
mod security;
mod status;
mod tls_files;
mod tun;
mod udp_buffers;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use muxtunnel_gateway_config::{
    Cidr, Config, Connect, GatewayLimits, LISTEN_STDIO, LIVENESS_SECONDS_DEFAULT, ListenRule, Pool,
    PublicKeys, Role, Rule, STREAMS_DEFAULT, Security, Transport,
};

use crate::base::log::Format;
use crate::process::{Failure, Source};
use bounds::{CarrierLimit, DrainArgs, MemoryArgs};
use check::Check;
use choices::{CongestionControlArg, ProtocolArg, TransportArg};
use completions::Completions;
use config::{base, plain};
use forwards::ForwardArgs;
use keygen::Keygen;
use leaf::{LeafArgs, members, registration, visited};
use log_format::LogArgs;
use network::{NetworkArgs, NetworkRules};
use security::SecurityArgs;
use status::Status;
use tun::Tun;
use udp_buffers::udp_buffers;

pub use exit_status::{EXIT_STATUSES, FAILED, SUCCEEDED, UNUSABLE};
pub use network::TemporaryInterface;

/// Carries many TCP streams over few carrier connections.
#[derive(Debug, Parser)]
#[command(name = "muxgate", version, after_help = help::MUXGATE)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway of a YAML file. Applies changes to the file's forwards and rules while the
    /// gateway runs.
    #[command(after_help = help::RUN)]
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Prints the rate that the kernel's buffers of this host permit, and the sysctls that raise it.
    /// With --config, validates a configuration file instead, and prints the first error with its
    /// line, its field and its remedy.
    #[command(after_help = help::CHECK)]
    Check(Check),
    /// Prints the status of a running gateway: readiness, carriers, streams, bytes and packets.
    #[command(after_help = help::STATUS)]
    Status(Status),
    /// Accepts carriers and dials targets.
    #[command(after_help = help::EXIT)]
    Exit(Box<ExitArgs>),
    /// Listens for connections and dials the exit.
    #[command(after_help = help::ENTRY)]
    Entry(Box<EntryArgs>),
    /// Writes a new private key and prints its public key in two forms: mte1... for an entry and
    /// mtx1... for an exit. With --tls, writes an authority and a certificate for each side.
    #[command(after_help = help::KEYGEN)]
    Keygen(Keygen),
    /// Prints a script that completes muxgate's command line in a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions(Completions),
    /// Prints the largest receive and send buffers, in bytes, that the kernel grants to UDP sockets
    /// on this host. Fails if one of the two is smaller than the buffers that QUIC, HTTP/3 and KCP
    /// carriers request.
    #[command(after_help = help::UDP_BUFFERS)]
    UdpBuffers,
    /// Creates or deletes the TUN interface of a gateway that runs without CAP_NET_ADMIN.
    #[command(subcommand)]
    Tun(Tun),
    /// Joins the connections of entries and exits that cannot reach each other.
    #[command(after_help = help::RENDEZVOUS)]
    Rendezvous(RendezvousArgs),
}

/// The task that a command line requests.
pub enum Task {
    /// Runs a gateway.
    Run(Source),
    /// Runs another command, which returns the text to print.
    Print(Box<dyn FnOnce() -> Result<String, Failure>>),
}

impl Task {
    fn print(command: impl FnOnce() -> anyhow::Result<String> + 'static) -> Self {
        Self::Print(Box::new(move || command().map_err(Failure::Runtime)))
    }
}

#[derive(Debug, Args)]
struct RendezvousArgs {
    /// Listen for entries and exits on this address.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: String,
    /// A network of load balancers in front of --listen (repeatable). Connections from this network
    /// must begin with a PROXY protocol header, version 1 or 2, which names the client. The
    /// gateway reads no header from other addresses.
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<Cidr>,
    /// The private key of the rendezvous, as `muxgate keygen` writes it. Repeatable once, the newest
    /// key last, while the members change to the newer key.
    #[arg(long = "key", value_name = "FILE", required = true)]
    keys: Vec<PathBuf>,
    /// The public key of a gateway that may meet others here: mtx1... of an exit, mte1... of an entry
    /// (repeatable).
    #[arg(long, value_name = "KEY", required_unless_present = "members")]
    member: Vec<String>,
    /// A file with further members, one line `[expirationTime="TIME"] KEY [NAME]` for each key. If the
    /// file changes, the registrations of the exits that it no longer has end.
    #[arg(long, value_name = "FILE")]
    members: Option<PathBuf>,
    /// Serve /healthz, /readyz, /metrics and /status on this address.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// A name under which clients reach --admin (repeatable). The port also serves requests whose
    /// Host is an IP address or localhost, and refuses all others.
    #[arg(long, value_name = "NAME", requires = "admin")]
    admin_host: Vec<String>,
    /// Number of workers, 1..=64. Each worker is a thread with its own event loop [default: one per
    /// core].
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    #[command(flatten)]
    carriers: CarrierLimit,
    #[command(flatten)]
    drain: DrainArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Flags of entries and exits.
#[derive(Debug, Args)]
struct Common {
    /// Mux protocol. Both ends must have the same protocol.
    #[arg(long, value_enum, ignore_case = true, default_value = "Native")]
    protocol: ProtocolArg,
    /// Transport of the carriers. Both ends must have the same transport. [default: WebSocket with a
    /// ws:// or wss:// address, otherwise TCP]
    #[arg(long, value_enum, ignore_case = true)]
    transport: Option<TransportArg>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Serve /healthz, /readyz, /metrics and /status on this address.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// A name under which clients reach --admin (repeatable). The port also serves requests whose
    /// Host is an IP address or localhost, and refuses all others.
    #[arg(long, value_name = "NAME", requires = "admin")]
    admin_host: Vec<String>,
    #[command(flatten)]
    network: NetworkArgs,
    /// Congestion control of the carriers.
    #[arg(long, value_enum, ignore_case = true, default_value = "Auto")]
    congestion_control: CongestionControlArg,
    /// Probe a carrier after this number of seconds without a byte of the peer, 5..=300. Devices on
    /// the path then do not cut a silent carrier, and a peer that has vanished is noticed.
    #[arg(long, value_name = "SECONDS", default_value_t = LIVENESS_SECONDS_DEFAULT)]
    liveness_seconds: u32,
    /// Proxy to dial through: http:// or socks5h://, optionally with USER:PASSWORD@ before the
    /// host. `none`: no proxy, whatever the environment variables name [default: for ws:// and
    /// wss://, the proxy that the environment variables name; otherwise none].
    #[arg(long, value_name = "http://HOST:PORT|none")]
    proxy: Option<String>,
    /// Number of workers, 1..=64. Each worker is a thread with its own event loop, and the workers
    /// share the streams [default: one per core. With a network: one per queue. For a JMUX entry,
    /// --connect-command and --stdio: one].
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    /// Reset a stream after this number of seconds without a byte in either direction; 0: never
    /// [default: 0].
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u32>,
    /// Reset a stream with one closed direction after this number of seconds without a byte; 0:
    /// never [default: 3600].
    #[arg(long, value_name = "SECONDS")]
    half_open_timeout: Option<u32>,
    /// Probe a client or target over TCP after this number of seconds of silence, 0..=7200, and
    /// reset its stream if it does not answer in as much time again; 0: never [default: 60].
    #[arg(long, value_name = "SECONDS")]
    keepalive: Option<u32>,
    /// With protocol Native: end each stream when its carrier ends, and retain no sent payload. If
    /// one end has this flag, the flag applies to both ends.
    #[arg(long)]
    no_resume: bool,
    /// Copy payload even if the kernel could move it from socket to socket (splice). Use this flag
    /// on kernels whose splicing is broken, and to compare the performance.
    #[arg(long)]
    no_splice: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Maximum number of concurrent streams of each session, 1..=1000000.
    #[arg(long, value_name = "N", default_value_t = STREAMS_DEFAULT)]
    session_streams: u32,
    #[command(flatten)]
    drain: DrainArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Args)]
struct ExitArgs {
    #[command(flatten)]
    common: Common,
    /// Accept carriers on ADDR:PORT, ws://ADDR:PORT/PATH for WebSocket (wss:// with certificates or tls),
    /// or unix:/PATH.
    #[arg(
        long,
        value_name = "[ws://]ADDR:PORT[/PATH]|unix:/PATH",
        required_unless_present_any = ["rendezvous", "stdio"],
        conflicts_with = "rendezvous"
    )]
    listen: Option<String>,
    /// An origin whose web pages may open carriers at ws:// or wss://, such as
    /// `https://app.example.com` (repeatable; default: no origin).
    #[arg(long, value_name = "SCHEME://HOST[:PORT]", requires = "listen")]
    allow_origin: Vec<String>,
    /// A network of load balancers in front of --listen (repeatable). Connections from this network
    /// must begin with a PROXY protocol header, version 1 or 2, which names the client. The
    /// gateway reads no header from other addresses.
    #[arg(long, value_name = "CIDR", requires = "listen")]
    trusted_proxy: Vec<Cidr>,
    /// Use standard input and output as the only carrier, for an entry's --connect-command "ssh
    /// HOST muxgate exit --stdio ...". The exit process ends when the carrier ends.
    #[arg(long, conflicts_with_all = ["listen", "rendezvous"])]
    stdio: bool,
    #[command(flatten)]
    leaf: LeafArgs,
    /// A target that entries may dial (repeatable; default: none). Loopback and link-local
    /// addresses must be written literally.
    #[arg(long, value_name = "HOST|*.DOMAIN|CIDR[:PORT[-PORT]]|unix:/PATH")]
    allow: Vec<Rule>,
    /// A target that entries must not dial, even if --allow matches it (repeatable).
    #[arg(long, value_name = "HOST|*.DOMAIN|CIDR[:PORT[-PORT]]|unix:/PATH")]
    deny: Vec<Rule>,
    /// A further NAT64 prefix of the network (repeatable; 64:ff9b::/96 always counts). If an IPv6
    /// address with this prefix contains a protected IPv4 address, --allow must name the IPv6
    /// address literally.
    #[arg(long, value_name = "CIDR")]
    nat64_prefix: Vec<Cidr>,
    /// An address and ports on which the exit may listen if an entry requests it, for reverse
    /// forwards (repeatable; default: none). ADDR defaults to 127.0.0.1. With peer=IDENTITY, the rule applies only to the entry with that
    /// identity.
    #[arg(long, value_name = "[ADDR:]PORT[-PORT][,peer=IDENTITY]")]
    allow_listen: Vec<ListenRule>,
    #[command(flatten)]
    network_rules: NetworkRules,
    #[command(flatten)]
    carriers: CarrierLimit,
}

#[derive(Debug, Args)]
struct EntryArgs {
    #[command(flatten)]
    common: Common,
    /// The exit's carrier address (repeatable). A name may resolve to several exits. The entry uses
    /// the exits of the lowest order that answers [default: order=0], and exits of the same order
    /// share the streams. peer= is an identity of this exit, in place of --peer. ws://HOST:PORT/PATH
    /// selects WebSocket. wss:// selects WebSocket with certificates or tls. With keys or none,
    /// wss:// adds TLS to the proxy in front of the exit, verified by the system's certificates.
    /// unix:/PATH is a Unix socket.
    #[arg(
        long,
        value_name = "[ws://]HOST:PORT[/PATH]|unix:/PATH[,order=N][,name=NAME][,peer=KEY|NAME]",
        required_unless_present_any = ["rendezvous", "connect_command"],
        conflicts_with = "rendezvous"
    )]
    connect: Vec<String>,
    /// Start this command for each carrier, and use its standard input and output. Spaces separate
    /// words, and quotes work as in a shell, but no shell runs.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["connect", "rendezvous", "proxy"], value_parser = parse_command)]
    connect_command: Option<Words>,
    #[command(flatten)]
    leaf: LeafArgs,
    #[command(flatten)]
    forwards: ForwardArgs,
    /// Maximum JMUX packet size to offer, in bytes [default: 4096]. muxgate and jetsocat 2024.3.2
    /// and later accept up to 65535.
    #[arg(long, value_name = "BYTES")]
    packet_bytes: Option<u16>,
    /// Carriers of each session, 1 to 16; with protocol JMUX only 1 [default: 1..4, but 1 with
    /// --transport KCP or Auto, with --connect-command, and with protocol Native and --no-resume].
    #[arg(long, value_name = "N|MIN..MAX", value_parser = parse_pool)]
    carriers: Option<Pool>,
}

impl Cli {
    /// The interface that the gateway creates and deletes, if --device-address is set.
    #[must_use]
    pub fn interface(&self) -> Option<TemporaryInterface> {
        match &self.command {
            Command::Entry(args) => args.common.network.interface(Role::Entry),
            Command::Exit(args) => args.common.network.interface(Role::Exit),
            _ => None,
        }
    }

    /// The format of the log.
    #[must_use]
    pub fn log_format(&self) -> Format {
        let args = match &self.command {
            Command::Run { log, .. } => log,
            Command::Exit(args) => &args.common.log,
            Command::Entry(args) => &args.common.log,
            Command::Rendezvous(args) => &args.log,
            _ => return Format::Text,
        };
        args.log_format
    }

    /// Converts the command line to a task.
    ///
    /// # Errors
    /// Options that cannot be combined.
    pub fn task(self) -> Result<Task, String> {
        Ok(Task::Run(match self.command {
            Command::Check(check) => return Ok(Task::Print(Box::new(|| check.run()))),
            Command::Status(status) => return Ok(Task::print(|| status.run())),
            Command::Keygen(keygen) => return Ok(Task::print(move || keygen.run())),
            Command::Completions(shell) => return Ok(Task::print(move || shell.script())),
            Command::UdpBuffers => return Ok(Task::print(udp_buffers)),
            Command::Tun(tun) => return Ok(Task::print(|| tun.run())),
            Command::Run { config, .. } => Source::File(config),
            Command::Exit(args) => {
                let typed = args.common.transport;
                let base = base(Role::Exit, args.common, args.network_rules, args.stdio)?;
                let (listen, mut web_socket) = address::parse_option(args.listen, &base.security)?;
                match &mut web_socket {
                    Some(web_socket) => web_socket.origins = args.allow_origin,
                    None if args.allow_origin.is_empty() => {}
                    None => {
                        return Err("--allow-origin requires --listen ws:// or wss://".to_owned());
                    }
                }
                let listen = listen.or(args.stdio.then(|| LISTEN_STDIO.to_owned()));
                Source::Flags(Box::new(Config {
                    listen,
                    trusted_proxies: args.trusted_proxy,
                    transport: transport(typed, web_socket.is_some()),
                    web_socket,
                    rendezvous: args.leaf.place()?.map(registration).into_iter().collect(),
                    allow: args.allow,
                    deny: args.deny,
                    nat64_prefixes: args.nat64_prefix,
                    allow_listen: args.allow_listen,
                    limits: args.carriers.within(base.limits),
                    ..base
                }))
            }
            Command::Entry(mut args) => {
                let listeners = args.forwards.listeners();
                let peers = args.common.security.take_peers();
                let command = args.connect_command.map(|words| words.0);
                let rules = NetworkRules::default();
                let typed = args.common.transport;
                let base = base(Role::Entry, args.common, rules, command.is_some())?;
                if listeners.is_empty() && base.network.is_none() {
                    return Err(NOTHING_ENTERS.to_owned());
                }
                let (mut connect, web_socket) =
                    address::exits(&args.connect, &peers, &base.security)?;
                let command = command.map(|command| Connect {
                    name: "exit".to_owned(),
                    command,
                    ..Connect::default()
                });
                let visited = args.leaf.place()?.map(visited);
                if let Some(mut exit) = command.or(visited) {
                    address::identify(&mut exit, &peers, &base.security)?;
                    connect.push(exit);
                }
                Source::Flags(Box::new(Config {
                    forwards: listeners.forwards,
                    reverse_forwards: listeners.reverse_forwards,
                    proxies: listeners.proxies,
                    packet_bytes: args.packet_bytes,
                    pool: args.carriers,
                    connect,
                    transport: transport(typed, web_socket.is_some()),
                    web_socket,
                    ..base
                }))
            }
            Command::Rendezvous(args) => Source::Flags(Box::new(Config {
                listen: Some(args.listen),
                trusted_proxies: args.trusted_proxy,
                security: Security::PublicKeys(PublicKeys {
                    private_key_files: args.keys,
                    peers: Vec::new(),
                    peers_file: args.members,
                    places: Vec::new(),
                }),
                members: members(&args.member)?,
                admin: args.admin,
                admin_hosts: args.admin_host,
                workers: args.workers,
                limits: args.carriers.within(GatewayLimits::default()),
                drain: args.drain.drain(),
                ..plain(Role::Rendezvous)
            })),
        }))
    }
}

/// The transport of the flag `typed`. `upgrades`: whether the address is that of a WebSocket.
fn transport(typed: Option<TransportArg>, upgrades: bool) -> Transport {
    match typed {
        Some(typed) => typed.into(),
        None if upgrades => Transport::WebSocket,
        None => Transport::default(),
    }
}

/// The error for an entry without a listener and without a network.
const NOTHING_ENTERS: &str = "an entry needs a listener or a network: give --forward, --socks5, --http-proxy, --auto, --reverse or \
     --transparent, or --entry-cidr and --exit-cidr";

/// A program and its arguments.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

/// Splits `text` into words as a shell would, but expands neither variables nor patterns.
fn parse_command(text: &str) -> Result<Words, String> {
    match shlex::split(text) {
        Some(words) if words.is_empty() => Err("the command is empty".to_owned()),
        Some(words) => Ok(Words(words)),
        None => Err(
            "a quote is not closed, or the last backslash is not followed by a character"
                .to_owned(),
        ),
    }
}

/// Parses the number of carriers. [`Config::check`] decides whether the protocol permits this
/// number.
fn parse_pool(text: &str) -> Result<Pool, String> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    match (min.parse(), max.parse()) {
        (Ok(min), Ok(max)) => Ok(Pool {
            min,
            max: Some(max),
        }),
        _ => Err("expected a number or MIN..MAX, such as 4 or 1..4".to_owned()),
    }
}

#[cfg(test)]
mod tests;

//! The command line: what was typed, and the configuration it means.

mod address;
mod check;
mod completions;
#[cfg(test)]
mod examples;
mod forwards;
mod help;
mod keygen;
mod log_format;
mod network;
mod security;
mod tls_files;
mod tun;
mod udp_buffers;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muxtunnel_gateway_config::{
    Cidr, Config, CongestionControl, Drain, HALF_OPEN_SECONDS_DEFAULT, LISTEN_STDIO, Leaf, Limits,
    ListenRule, Memory, Policy, Pool, Protocol, ProxyError, Role, Rule, Security, Timeouts,
    Transport,
};

use crate::base::log::Format;
use crate::process::Source;
use forwards::ForwardArgs;
use log_format::LogArgs;
use network::{NetworkArgs, NetworkRules};
use security::SecurityArgs;

pub use check::Check;
pub use completions::Completions;
pub use keygen::Keygen;
pub use network::TemporaryInterface;
pub use tun::Tun;
pub use udp_buffers::udp_buffers;

/// Carries many TCP streams over few carrier connections.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = help::MUXGATE
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway that a YAML file describes; changed forwards are taken over while it runs.
    #[command(after_help = help::RUN)]
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Parses and validates a configuration file. Prints the first error with its line, its field and its remedy.
    #[command(after_help = help::CHECK)]
    Check(Check),
    /// Accepts carriers and dials targets.
    #[command(after_help = help::EXIT)]
    Exit(Box<ExitArgs>),
    /// Listens for connections and dials the exit.
    #[command(after_help = help::ENTRY)]
    Entry(Box<EntryArgs>),
    /// Writes a new private key for `--security noise`, and prints the public one; or, with --tls, an authority and
    /// a certificate for each side.
    #[command(after_help = help::KEYGEN)]
    Keygen(Keygen),
    /// Prints a script that completes muxgate's command line in a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions(Completions),
    /// Prints what buffers the kernel gives UDP sockets here; fails where a gateway asks for more.
    #[command(after_help = help::UDP_BUFFERS)]
    UdpBuffers,
    /// Makes the interface that a gateway without rights carries IP packets from and to, or deletes it.
    #[command(subcommand)]
    Tun(Tun),
    /// Joins the connections of entries and exits that cannot reach each other; sees only what they
    /// say to each other.
    #[command(after_help = help::RENDEZVOUS)]
    Rendezvous(RendezvousArgs),
}

/// What was asked for.
#[derive(Debug)]
pub enum Task {
    /// A gateway.
    Run(Source),
    /// The check of a configuration file.
    Check(Check),
    /// A key, or certificates.
    Keygen(Keygen),
    /// A script.
    Completions(Completions),
    /// The kernel's buffers.
    UdpBuffers,
    /// An interface.
    Tun(Tun),
}

/// Where two leaf gateways meet.
#[derive(Debug, Args)]
struct LeafArgs {
    /// Meet the other side at this rendezvous.
    #[arg(
        long,
        value_name = "HOST:PORT",
        requires = "name",
        requires = "secret_file"
    )]
    rendezvous: Option<String>,
    /// The name under which the exit is visited there.
    #[arg(long, requires = "rendezvous")]
    name: Option<String>,
    /// The file with the name's secret for this role, at least 16 bytes.
    #[arg(long, value_name = "FILE", requires = "rendezvous")]
    secret_file: Option<String>,
}

impl LeafArgs {
    fn leaf(&self) -> Option<Leaf> {
        let (name, secret_file) = (self.name.clone()?, self.secret_file.clone()?);
        Some(Leaf { name, secret_file })
    }
}

#[derive(Debug, Args)]
struct RendezvousArgs {
    /// Where leaf gateways arrive.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: String,
    /// A network of load balancers in front of --listen (repeatable): their connections have to begin with a header of
    /// the PROXY protocol, version 1 or 2, which names the client. No header is read from any other address.
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<Cidr>,
    /// The file with the secrets of all names: a line NAME EXIT-SECRET ENTRY-SECRET each.
    #[arg(long, value_name = "FILE")]
    secrets: String,
    /// Serve /healthz, /readyz, /metrics and /status here.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// Event loops, 1..=64 [default: one a core].
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    #[command(flatten)]
    log: LogArgs,
}

/// What both sides must be told.
#[derive(Debug, Args)]
struct Common {
    /// The mux protocol; both ends must have the same.
    #[arg(long, value_enum, default_value = "native")]
    protocol: ProtocolArg,
    /// What carriers run on; both ends must have the same.
    #[arg(long, value_enum, default_value = "tcp")]
    transport: TransportArg,
    #[command(flatten)]
    security: SecurityArgs,
    /// Serve /healthz, /readyz, /metrics and /status here.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    #[command(flatten)]
    network: NetworkArgs,
    /// How the kernel paces carriers.
    #[arg(long, value_enum, default_value = "auto")]
    congestion_control: CongestionControlArg,
    /// Dial through this proxy, or none whatever the environment says [default: for ws:// and wss:// what the
    /// environment says, else none]. http:// or socks5h://, with USER:PASSWORD@ before the host.
    #[arg(long, value_name = "http://HOST:PORT|none")]
    proxy: Option<String>,
    /// Event loops that share the streams, 1..=64 [default: one a core; one for a JMUX entry].
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    /// Reset a stream without a byte in either direction for this long; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,
    /// Reset a stream with one half closed and without a byte for this long; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = HALF_OPEN_SECONDS_DEFAULT)]
    half_open_timeout: u32,
    /// With protocol native: let streams end with their carrier, and keep nothing of what is sent. It is
    /// enough that one end says so.
    #[arg(long)]
    no_resume: bool,
    /// Copy payload where the kernel could move it from socket to socket: for kernels in which that is
    /// broken, and for comparison.
    #[arg(long)]
    no_splice: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProtocolArg {
    /// As jetsocat speaks it.
    Jmux,
    /// Our own, between two muxgates.
    Native,
    /// HTTP/2, a CONNECT for each stream; h2c with --security none.
    Http2,
    /// As Istio's proxies speak it: HTTP/2 with --security mtls; plaintext HBONE with none.
    Hbone,
    /// QUIC, over UDP; with --security tls or mtls.
    Quic,
    /// HTTP/3, a CONNECT for each stream; with --security tls or mtls.
    Http3,
    /// SSH: an exit takes ssh -L, -D and -R, an entry goes to an sshd.
    Ssh,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TransportArg {
    /// TCP, or what --connect and --listen say besides.
    Tcp,
    /// KCP over UDP, on the port of --listen: for paths that lose packets; with protocol native.
    Kcp,
    /// What the path allows, and of that what carries more: TCP, KCP, and WebSocket where that is configured.
    Auto,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CongestionControlArg {
    /// By what is measured of the path.
    Auto,
    /// Loss-based.
    Cubic,
    /// By measured bandwidth and round-trip time.
    Bbr,
}

#[derive(Debug, Args)]
struct ExitArgs {
    #[command(flatten)]
    common: Common,
    /// Where carriers arrive: ADDR:PORT, or ws://ADDR:PORT/PATH for WebSocket ones, wss:// with mtls and tls, or
    /// unix:/PATH.
    #[arg(
        long,
        value_name = "[ws://]ADDR:PORT[/PATH]|unix:/PATH",
        required_unless_present_any = ["rendezvous", "stdio"],
        conflicts_with = "rendezvous"
    )]
    listen: Option<String>,
    /// An origin of web pages whose browsers may open carriers at ws:// or wss://, such as `https://app.example.com`
    /// (repeatable; none: no browser may).
    #[arg(long, value_name = "SCHEME://HOST[:PORT]", requires = "listen")]
    allow_origin: Vec<String>,
    /// A network of load balancers in front of --listen (repeatable): their connections have to begin with a header of
    /// the PROXY protocol, version 1 or 2, which names the client. No header is read from any other address.
    #[arg(long, value_name = "CIDR", requires = "listen")]
    trusted_proxy: Vec<Cidr>,
    /// The one carrier is standard input and output, as for an entry's --connect-command "ssh HOST muxgate exit
    /// --stdio ..."; ends with it.
    #[arg(long, conflicts_with_all = ["listen", "rendezvous"])]
    stdio: bool,
    #[command(flatten)]
    leaf: LeafArgs,
    /// A target that may be dialled (repeatable; none: nothing may). Loopback and link-local
    /// addresses only when written out.
    #[arg(long, value_name = "HOST|*.DOMAIN|CIDR[:PORT[-PORT]]|unix:/PATH")]
    allow: Vec<Rule>,
    /// A target that may not be dialled, whatever is allowed (repeatable).
    #[arg(long, value_name = "HOST|*.DOMAIN|CIDR[:PORT[-PORT]]|unix:/PATH")]
    deny: Vec<Rule>,
    /// A prefix behind which the network translates IPv6 to IPv4, other than 64:ff9b::/96 (repeatable): an address
    /// behind it is as guarded as the IPv4 address in it.
    #[arg(long, value_name = "CIDR")]
    nat64_prefix: Vec<Cidr>,
    /// Where entries may have this side listen (repeatable; none: nowhere). ADDR is 127.0.0.1 unless it is
    /// written out; with a peer, only the entry of that identity.
    #[arg(long, value_name = "[ADDR:]PORT[-PORT][,peer=IDENTITY]")]
    allow_listen: Vec<ListenRule>,
    #[command(flatten)]
    network_rules: NetworkRules,
}

#[derive(Debug, Args)]
struct EntryArgs {
    #[command(flatten)]
    common: Common,
    /// The exit's carrier address, or the addresses of several exits, separated by commas. A name may resolve to
    /// several exits. ws://HOST:PORT/PATH makes carriers WebSocket connections, wss:// with mtls and tls; unix:/PATH
    /// is a Unix socket.
    #[arg(
        long,
        value_name = "[ws://]HOST:PORT[/PATH]|unix:/PATH",
        required_unless_present_any = ["rendezvous", "connect_command"],
        conflicts_with = "rendezvous"
    )]
    connect: Option<String>,
    /// Start this for a carrier, and speak to its standard input and output. Words are separated by spaces, and may
    /// be quoted as in a shell, but none reads them.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["connect", "rendezvous", "proxy"], value_parser = parse_command)]
    connect_command: Option<Words>,
    #[command(flatten)]
    leaf: LeafArgs,
    #[command(flatten)]
    forwards: ForwardArgs,
    /// Largest JMUX packet that is offered [default: 4096]. muxgate and jetsocat 2024.3.2 and later
    /// take up to 65535.
    #[arg(long, value_name = "BYTES")]
    packet_bytes: Option<u16>,
    /// Carriers of each session, 1 to 16, with protocol native [default: 1..4, and 1 with --no-resume].
    #[arg(long, value_name = "N|MIN..MAX", value_parser = parse_pool)]
    carriers: Option<Pool>,
}

impl Cli {
    /// The interface that the gateway needs made, if it was asked for.
    #[must_use]
    pub fn interface(&self) -> Option<TemporaryInterface> {
        match &self.command {
            Command::Entry(args) => args.common.network.interface(Role::Entry),
            Command::Exit(args) => args.common.network.interface(Role::Exit),
            _ => None,
        }
    }

    /// The form of the log.
    #[must_use]
    pub fn log_format(&self) -> Format {
        let args = match &self.command {
            Command::Run { log, .. } => log,
            Command::Exit(args) => &args.common.log,
            Command::Entry(args) => &args.common.log,
            Command::Rendezvous(args) => &args.log,
            _ => return Format::Text,
        };
        args.format()
    }

    /// What was asked for.
    ///
    /// # Errors
    /// Options that do not go together.
    pub fn task(self) -> Result<Task, String> {
        Ok(Task::Run(match self.command {
            Command::Check(check) => return Ok(Task::Check(check)),
            Command::Keygen(keygen) => return Ok(Task::Keygen(keygen)),
            Command::Completions(completions) => return Ok(Task::Completions(completions)),
            Command::UdpBuffers => return Ok(Task::UdpBuffers),
            Command::Tun(tun) => return Ok(Task::Tun(tun)),
            Command::Run { config, .. } => Source::File(config),
            Command::Exit(args) => {
                let base = base(Role::Exit, args.common, args.network_rules, args.stdio)?;
                let (listen, mut web_socket) = address::parse_option(args.listen, &base.security)?;
                match &mut web_socket {
                    Some(web_socket) => web_socket.origins = args.allow_origin,
                    None if args.allow_origin.is_empty() => {}
                    None => return Err("--allow-origin needs --listen ws:// or wss://".to_owned()),
                }
                let listen = listen.or(args.stdio.then(|| LISTEN_STDIO.to_owned()));
                Source::Flags(Box::new(Config {
                    listen,
                    trusted_proxies: args.trusted_proxy,
                    web_socket,
                    rendezvous: args.leaf.leaf(),
                    connect: args.leaf.rendezvous,
                    allow: args.allow,
                    policy: Policy {
                        deny: args.deny,
                        nat64_prefixes: args.nat64_prefix,
                        ..Policy::default()
                    },
                    allow_listen: args.allow_listen,
                    ..base
                }))
            }
            Command::Entry(args) => {
                let forwards = args.forwards.forwards();
                let command = args.connect_command.map(|words| words.0);
                let rules = NetworkRules::default();
                let base = base(Role::Entry, args.common, rules, command.is_some())?;
                if forwards.is_empty() && base.network.is_none() {
                    return Err(NOTHING_ENTERS.to_owned());
                }
                let (connect, web_socket) = address::parse_option(args.connect, &base.security)?;
                Source::Flags(Box::new(Config {
                    forwards,
                    packet_bytes: args.packet_bytes,
                    pool: args.carriers,
                    rendezvous: args.leaf.leaf(),
                    connect: connect.or(args.leaf.rendezvous),
                    connect_command: command.unwrap_or_default(),
                    web_socket,
                    ..base
                }))
            }
            Command::Rendezvous(args) => Source::Flags(Box::new(Config {
                listen: Some(args.listen),
                trusted_proxies: args.trusted_proxy,
                secrets_file: Some(args.secrets),
                admin: args.admin,
                workers: args.workers,
                ..plain(Role::Rendezvous)
            })),
        }))
    }
}

/// Of an entry without a forward and without a network.
const NOTHING_ENTERS: &str = "nothing enters here: --forward, --socks5, --http-proxy, --auto, --reverse or --transparent says \
     what is listened on, --entry-cidr and --exit-cidr which packets are carried";

/// A gateway that has but its defaults.
fn plain(role: Role) -> Config {
    Config {
        role,
        protocol: Protocol::Native,
        transport: Transport::Tcp,
        packet_bytes: None,
        security: Security::None {},
        web_socket: None,
        congestion_control: CongestionControl::Auto,
        connect: None,
        connect_fallback: None,
        listen: None,
        trusted_proxies: Vec::new(),
        connect_command: Vec::new(),
        proxy: None,
        rendezvous: None,
        secrets_file: None,
        ssh: None,
        network: None,
        admin: None,
        forwards: Vec::new(),
        allow: Vec::new(),
        policy: Policy::default(),
        allow_listen: Vec::new(),
        offer: None,
        workers: None,
        pool: None,
        resume: true,
        splice: true,
        timeouts: Timeouts::default(),
        memory: Memory::default(),
        limits: Limits::default(),
        drain: Drain::default(),
    }
}

fn base(role: Role, common: Common, rules: NetworkRules, is_piped: bool) -> Result<Config, String> {
    Ok(Config {
        protocol: match common.protocol {
            ProtocolArg::Jmux => Protocol::Jmux,
            ProtocolArg::Native => Protocol::Native,
            ProtocolArg::Http2 => Protocol::Http2,
            ProtocolArg::Hbone => Protocol::Hbone,
            ProtocolArg::Quic => Protocol::Quic,
            ProtocolArg::Http3 => Protocol::Http3,
            ProtocolArg::Ssh => Protocol::Ssh,
        },
        transport: match common.transport {
            TransportArg::Tcp => Transport::Tcp,
            TransportArg::Kcp => Transport::Kcp,
            TransportArg::Auto => Transport::Auto,
        },
        security: {
            let is_ssh = matches!(common.protocol, ProtocolArg::Ssh);
            common.security.security(role, is_piped, is_ssh)?
        },
        // Here, since clap repeats what it cannot parse, which may have a password.
        proxy: common
            .proxy
            .map(|text| text.parse())
            .transpose()
            .map_err(|error: ProxyError| format!("--proxy: {error}"))?,
        congestion_control: match common.congestion_control {
            CongestionControlArg::Auto => CongestionControl::Auto,
            CongestionControlArg::Cubic => CongestionControl::Cubic,
            CongestionControlArg::Bbr => CongestionControl::Bbr,
        },
        admin: common.admin,
        network: common.network.network(rules)?,
        workers: common.workers,
        resume: !common.no_resume,
        splice: !common.no_splice,
        timeouts: Timeouts {
            idle_seconds: common.idle_timeout,
            half_open_seconds: common.half_open_timeout,
        },
        ..plain(role)
    })
}

/// A program and its arguments.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

/// As a shell would read them, without variables, patterns and the like.
fn parse_command(text: &str) -> Result<Words, String> {
    match shlex::split(text) {
        Some(words) if words.is_empty() => Err("there is no program".to_owned()),
        Some(words) => Ok(Words(words)),
        None => Err("a quote is not closed, or nothing is behind the last backslash".to_owned()),
    }
}

/// How many carriers; whether they can be had is judged with the rest of the configuration.
fn parse_pool(text: &str) -> Result<Pool, String> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    match (min.parse(), max.parse()) {
        (Ok(min), Ok(max)) => Ok(Pool { min, max }),
        _ => Err("expected a number or MIN..MAX, such as 4 or 1..4".to_owned()),
    }
}

#[cfg(test)]
mod tests;

//! The command line: what was typed, and the configuration it means.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muxtunnel_gateway_config::{
    Allow, BitRate, Config, CongestionControl, Drain, Forward, ForwardLimits,
    HALF_OPEN_SECONDS_DEFAULT, Limits, Memory, Pool, Priority, Protocol, Role, Security,
    SecurityMode, Target, Timeouts,
};

use crate::process::Source;

/// Carries many TCP streams over few carrier connections.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  On the far side, allow one target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  Here, forward a local port to it:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  The same for at most 100 connections at 200 Mbit/s in all; those idle for 15 minutes end:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432 --limit-streams 100 --limit-rate 200Mbit \\
      --idle-timeout 900
  With a jetsocat at the other end:
    muxgate entry --protocol jmux --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway that a YAML file describes; changed forwards are taken over while it runs.
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Accepts carriers and dials targets.
    Exit(ExitArgs),
    /// Listens for connections and dials the exit.
    Entry(EntryArgs),
}

/// What both sides must be told.
#[derive(Debug, Args)]
struct Common {
    /// The mux protocol; both ends must have the same.
    #[arg(long, value_enum, default_value = "native")]
    protocol: ProtocolArg,
    /// Carrier security. `none` is plain TCP: anyone on the path reads and changes the traffic.
    #[arg(long, value_enum)]
    security: SecurityArg,
    /// Serve /healthz, /readyz, /metrics and /status here.
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// How the kernel paces carriers.
    #[arg(long, value_enum, default_value = "auto")]
    congestion_control: CongestionControlArg,
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
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProtocolArg {
    /// As jetsocat speaks it.
    Jmux,
    /// Our own, between two muxgates.
    Native,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SecurityArg {
    None,
}

#[derive(Debug, Args)]
struct ExitArgs {
    #[command(flatten)]
    common: Common,
    /// Where carriers arrive.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: String,
    /// A target that may be dialled (repeatable; none: nothing may). Loopback and link-local
    /// addresses only when written out.
    #[arg(long, value_name = "HOST|CIDR[:PORT]")]
    allow: Vec<Allow>,
}

#[derive(Debug, Args)]
struct EntryArgs {
    #[command(flatten)]
    common: Common,
    /// The exit's carrier address, or those of several exits with commas between them: a name may lead to several, too
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// Listen on PORT (of 127.0.0.1, or of BIND) and forward to HOST:PORT (repeatable). PRIORITY says who
    /// goes first among forwards: auto (those that send little), interactive or bulk [default: auto].
    #[arg(
        long,
        value_name = "[BIND:]PORT:HOST:PORT[,PRIORITY]",
        required = true,
        value_parser = parse_forward
    )]
    forward: Vec<(String, Target, Priority)>,
    /// Largest JMUX packet that is offered [default: 4096]. muxgate and jetsocat 2024.3.2 and later
    /// take up to 65535.
    #[arg(long, value_name = "BYTES")]
    packet_bytes: Option<u16>,
    /// Carriers of each session, 1 to 16, with protocol native [default: 1..4, and 1 with --no-resume].
    #[arg(long, value_name = "N|MIN..MAX", value_parser = parse_pool)]
    carriers: Option<Pool>,
    /// Streams of each forward at once; one connection too many is reset.
    #[arg(long, value_name = "N")]
    limit_streams: Option<u32>,
    /// New connections of each forward a second; one too many is reset.
    #[arg(long, value_name = "N")]
    limit_opens: Option<u32>,
    /// Payload of each forward a second in each direction, such as 100Mbit; what is more waits.
    #[arg(long, value_name = "RATE")]
    limit_rate: Option<BitRate>,
}

impl EntryArgs {
    fn forwards(&self) -> Vec<Forward> {
        let limits = ForwardLimits {
            streams: self.limit_streams,
            opens_per_second: self.limit_opens,
            rate: self.limit_rate,
        };
        let forward = |(listen, target, priority): &(String, Target, Priority)| Forward {
            name: listen.clone(),
            listen: listen.clone(),
            target: target.clone(),
            priority: *priority,
            limits,
        };
        self.forward.iter().map(forward).collect()
    }
}

impl Cli {
    /// The configuration that was asked for.
    #[must_use]
    pub fn source(self) -> Source {
        match self.command {
            Command::Run { config } => Source::File(config),
            Command::Exit(args) => Source::Flags(Box::new(Config {
                listen: Some(args.listen),
                allow: args.allow,
                ..base(Role::Exit, args.common)
            })),
            Command::Entry(args) => Source::Flags(Box::new(Config {
                forwards: args.forwards(),
                packet_bytes: args.packet_bytes,
                pool: args.carriers,
                connect: Some(args.connect),
                ..base(Role::Entry, args.common)
            })),
        }
    }
}

fn base(role: Role, common: Common) -> Config {
    let SecurityArg::None = common.security;
    Config {
        role,
        protocol: match common.protocol {
            ProtocolArg::Jmux => Protocol::Jmux,
            ProtocolArg::Native => Protocol::Native,
        },
        packet_bytes: None,
        security: Security {
            mode: SecurityMode::None,
        },
        congestion_control: match common.congestion_control {
            CongestionControlArg::Auto => CongestionControl::Auto,
            CongestionControlArg::Cubic => CongestionControl::Cubic,
            CongestionControlArg::Bbr => CongestionControl::Bbr,
        },
        connect: None,
        listen: None,
        admin: common.admin,
        forwards: Vec::new(),
        allow: Vec::new(),
        workers: common.workers,
        pool: None,
        resume: !common.no_resume,
        timeouts: Timeouts {
            idle_seconds: common.idle_timeout,
            half_open_seconds: common.half_open_timeout,
        },
        memory: Memory::default(),
        limits: Limits::default(),
        drain: Drain::default(),
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

/// Reads from the right, since only there every part is present: PORT, HOST, PORT, BIND.
fn parse_forward(text: &str) -> Result<(String, Target, Priority), String> {
    let (text, priority) = match text.rsplit_once(',') {
        Some((text, priority)) => (text, priority.parse()?),
        None => (text, Priority::Auto),
    };
    let wrong = |problem: &str| {
        format!(
            "{problem}; expected [BIND:]PORT:HOST:PORT[,PRIORITY], such as 8080:web.internal:80 or [::1]:8080:[2001:db8::1]:80"
        )
    };
    let port = |text: &str, which: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(wrong(&format!(
            "the {which} port {text:?} is not 1..=65535"
        ))),
    };
    let (rest, target_port) = text
        .rsplit_once(':')
        .ok_or_else(|| wrong("there is no target port"))?;
    let target_port = port(target_port, "target")?;
    let (listen, host) = match rest.strip_suffix(']') {
        Some(rest) => rest
            .rsplit_once(":[")
            .ok_or_else(|| wrong("the target's bracket is not opened"))?,
        None => rest
            .rsplit_once(':')
            .ok_or_else(|| wrong("there is no target host"))?,
    };
    let (bind, listen_port) = listen.rsplit_once(':').unwrap_or(("127.0.0.1", listen));
    let listen_port = port(listen_port, "listen")?;
    if host.is_empty() {
        return Err(wrong("the target host is empty"));
    }
    let listen = format!(
        "{}:{listen_port}",
        if bind == "localhost" {
            "127.0.0.1"
        } else {
            bind
        }
    );
    Ok((
        listen,
        Target {
            host: host.to_owned(),
            port: target_port,
        },
        priority,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_parse() {
        let (auto, bulk) = (Priority::Auto, Priority::Bulk);
        for (text, listen, host, expected) in [
            ("8080:web:80", "127.0.0.1:8080", "web", auto),
            ("0.0.0.0:8080:10.0.0.1:80", "0.0.0.0:8080", "10.0.0.1", auto),
            (
                "8080:[2001:db8::1]:80",
                "127.0.0.1:8080",
                "2001:db8::1",
                auto,
            ),
            ("[::1]:8080:[::2]:80,bulk", "[::1]:8080", "::2", bulk),
            ("localhost:8080:web:80", "127.0.0.1:8080", "web", auto),
            ("8080:web:80,auto", "127.0.0.1:8080", "web", auto),
        ] {
            let (got, target, priority) = parse_forward(text).unwrap();
            assert_eq!(
                (got.as_str(), target.host.as_str(), target.port, priority),
                (listen, host, 80, expected),
                "{text}"
            );
        }
        let error = parse_forward("8080:web:80,urgent").unwrap_err();
        assert!(error.contains("auto, interactive and bulk"), "{error}");
    }

    #[test]
    fn a_bad_forward_is_refused_with_what_is_expected() {
        for text in [
            "",
            "80",
            "web:80",
            "8080:web",
            "8080:web:0",
            "0:web:80",
            "99999:web:80",
            "8080::80",
        ] {
            let error = parse_forward(text).unwrap_err();
            assert!(
                error.contains("expected [BIND:]PORT:HOST:PORT"),
                "{text}: {error}"
            );
        }
    }

    fn config(line: &str) -> Config {
        let words = ["muxgate"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(words).unwrap().source() {
            Source::Flags(config) => *config,
            Source::File(file) => panic!("{}", file.display()),
        }
    }

    #[test]
    fn flags_mean_what_a_file_would_say() {
        let entry = "entry --security none --connect far:64000 --forward 1:a:1";
        let defaults = config(entry);
        assert_eq!(defaults.protocol, Protocol::Native);
        assert_eq!((defaults.resume, defaults.pool()), (true, Pool::GROWING));
        assert_eq!(defaults.timeouts, Timeouts::default());
        assert_eq!(defaults.congestion_control, CongestionControl::Auto);
        assert!(defaults.workers.is_none() && defaults.forwards[0].limits.is_empty());
        let all = config(&format!(
            "{entry} --forward 2:b:2 --congestion-control bbr --workers 3 --idle-timeout 60 \
             --half-open-timeout 0 --limit-streams 4 --limit-opens 5 --limit-rate 100Mbit"
        ));
        assert_eq!(all.congestion_control, CongestionControl::Bbr);
        assert_eq!(all.workers, Some(3));
        let timeouts = Timeouts {
            idle_seconds: 60,
            half_open_seconds: 0,
        };
        assert_eq!(all.timeouts, timeouts);
        let limits = ForwardLimits {
            streams: Some(4),
            opens_per_second: Some(5),
            rate: Some(BitRate(100_000_000)),
        };
        assert!(all.forwards.iter().all(|forward| forward.limits == limits));
        let none_resumed = config(&format!("{entry} --no-resume"));
        assert_eq!(
            (none_resumed.resume, none_resumed.pool()),
            (false, Pool::ONE)
        );
        let jmux = config(&format!("{entry} --protocol jmux"));
        assert_eq!((jmux.protocol, jmux.pool()), (Protocol::Jmux, Pool::ONE));
        for (carriers, min, max) in [("4", 4, 4), ("2..8", 2, 8)] {
            let pool = config(&format!("{entry} --carriers {carriers}")).pool();
            assert_eq!(pool, Pool { min, max });
        }
        let exit = config("exit --security none --listen 0.0.0.0:64000");
        assert_eq!((exit.protocol, exit.pool()), (Protocol::Native, Pool::ONE));
    }

    #[test]
    fn what_is_no_number_of_carriers_is_refused() {
        for text in ["", "many", "1..", "..4", "1-4", "999"] {
            assert!(parse_pool(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}

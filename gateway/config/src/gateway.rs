//! What a checked configuration asks of a gateway: what its role needs and keeps until it is restarted ([`Gateway`]), and
//! what it takes over while it runs ([`Reloadable`]).

use crate::{
    Cidr, Config, ConfigError, CongestionControl, Forward, ListenRule, Memory, Network, Policy,
    Pool, Protocol, Role, Security, Timeouts, Transport, WebSocket,
};

/// What a gateway is, with what its role needs and nothing that is another role's. A change of it needs a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gateway {
    /// Streams enter here; it dials the exit.
    Entry(Entry),
    /// Targets are dialled here; it accepts carriers.
    Exit(Exit),
    /// It joins the connections of entries and exits.
    Rendezvous(Rendezvous),
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its sessions.
    pub session: SessionConfig,
    /// How it reaches its exits.
    pub exits: Exits,
    /// What carriers run on.
    pub transport: Transport,
    /// Carriers are WebSocket connections, or may be where that is to be chosen; `None`: as they are.
    pub web_socket: Option<WebSocket>,
    /// Carriers of each session.
    pub pool: Pool,
    /// IP packets between the networks of both sides.
    pub network: Option<Network>,
}

/// How an entry reaches its exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exits {
    /// By addresses.
    Addresses {
        /// [`Config::connect`].
        connect: String,
        /// [`Config::connect_fallback`].
        fallback: Option<String>,
    },
    /// By a program and its arguments: [`Config::connect_command`].
    Command(Vec<String>),
}

/// An exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Its sessions.
    pub session: SessionConfig,
    /// Where its carriers come from.
    pub arrivals: Arrivals,
    /// Carriers are WebSocket connections, or those of [`Arrivals::Any`] whose entries want that; `None`: as they are.
    pub web_socket: Option<WebSocket>,
    /// Carriers at once.
    pub carriers_max: u32,
    /// What takes SSH carriers besides: its sessions, and where it listens.
    pub ssh: Option<(SessionConfig, String)>,
    /// IP packets between the networks of both sides.
    pub network: Option<Network>,
}

/// Where an exit's carriers come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrivals {
    /// `addr:port` or `unix:/path`, where it listens.
    Socket(String),
    /// `addr:port`, where it listens for KCP.
    Kcp(String),
    /// `addr:port`, where it listens for TCP and for KCP.
    Any(String),
    /// Its standard input and output are the one carrier.
    Stdio,
    /// `host:port` of the rendezvous where it is visited.
    Rendezvous(String),
}

/// A rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// `addr:port`, where it listens for leaves.
    pub listen: String,
    /// Visits at once.
    pub carriers_max: u32,
}

/// What holds for each session of an entry or exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// The mux protocol.
    pub protocol: Protocol,
    /// [`Config::packet_bytes`].
    pub packet_bytes: Option<u16>,
    /// How the kernel paces carriers.
    pub congestion_control: CongestionControl,
    /// Whether this side has a say in how many carriers a session has: an exit does not know what its entries are
    /// configured to.
    pub carriers_vary: bool,
    /// Whether streams outlive their carrier, as far as this end has a say.
    pub resume: bool,
    /// Whether the kernel moves payload.
    pub splice: bool,
    /// Memory of one session.
    pub memory: Memory,
    /// Streams of one session.
    pub streams_max: u32,
    /// Whether IP packets go beside streams.
    pub packets: bool,
    /// Whether a carrier may have to ask a person for a password before its first byte passes.
    pub prompts: bool,
}

/// What a gateway takes over while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloadable {
    /// [`Config::forwards`].
    pub forwards: Vec<Forward>,
    /// [`Config::policy`], with the rules of its short form.
    pub policy: Policy,
    /// [`Config::allow_listen`].
    pub allow_listen: Vec<ListenRule>,
    /// [`Config::trusted_proxies`].
    pub trusted_proxies: Vec<Cidr>,
    /// [`Config::offer`].
    pub offer: Option<String>,
    /// [`Config::timeouts`].
    pub timeouts: Timeouts,
    /// [`Config::security`], of which the peers alone can change.
    pub security: Security,
}

impl Config {
    /// What its role needs until it is restarted.
    ///
    /// # Errors
    /// A field that the role needs is missing, which [`Self::check`] finds as well.
    pub fn gateway(&self) -> Result<Gateway, ConfigError> {
        let missing = |field| ConfigError::field(field, "is missing");
        let connect = || self.connect.clone().ok_or_else(|| missing("connect"));
        let listen = || self.listen.clone().ok_or_else(|| missing("listen"));
        let web_socket = self.web_socket.clone();
        let carriers_max = self.limits.carriers;
        Ok(match self.role {
            Role::Entry => Gateway::Entry(Entry {
                session: self.session(),
                exits: match self.connect_command.as_slice() {
                    [] => Exits::Addresses {
                        connect: connect()?,
                        fallback: self.connect_fallback.clone(),
                    },
                    command => Exits::Command(command.to_vec()),
                },
                transport: self.transport,
                web_socket,
                pool: self.pool(),
                network: self.network.clone(),
            }),
            Role::Exit => Gateway::Exit(Exit {
                session: self.session(),
                arrivals: if self.rendezvous.is_some() {
                    Arrivals::Rendezvous(connect()?)
                } else if self.is_stdio() {
                    Arrivals::Stdio
                } else {
                    match self.transport {
                        Transport::Tcp => Arrivals::Socket(listen()?),
                        Transport::Kcp => Arrivals::Kcp(listen()?),
                        Transport::Auto => Arrivals::Any(listen()?),
                    }
                },
                web_socket,
                carriers_max,
                ssh: self.ssh.as_ref().map(|ssh| {
                    let config = Self {
                        protocol: Protocol::Ssh,
                        ..self.clone()
                    };
                    (config.session(), ssh.listen.clone())
                }),
                network: self.network.clone(),
            }),
            Role::Rendezvous => Gateway::Rendezvous(Rendezvous {
                listen: listen()?,
                carriers_max,
            }),
        })
    }

    /// What holds for each of its sessions.
    #[must_use]
    pub fn session(&self) -> SessionConfig {
        let (resume, pool) = (self.resumes(), self.pool());
        SessionConfig {
            protocol: self.protocol,
            packet_bytes: self.packet_bytes,
            congestion_control: self.congestion_control,
            carriers_vary: resume && (self.role == Role::Exit || pool.min < pool.max),
            resume,
            splice: self.splice,
            memory: self.memory,
            streams_max: self.limits.streams,
            packets: self.network.is_some(),
            prompts: !self.connect_command.is_empty(),
        }
    }

    /// What is taken over while it runs.
    #[must_use]
    pub fn reloadable(&self) -> Reloadable {
        Reloadable {
            forwards: self.forwards.clone(),
            policy: Policy {
                allow: self.allowed().cloned().collect(),
                ..self.policy.clone()
            },
            allow_listen: self.allow_listen.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            offer: self.offer.clone(),
            timeouts: self.timeouts,
            security: self.security.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(yaml: &str) -> Gateway {
        let text = format!("security: {{mode: None}}\n{yaml}");
        Config::from_yaml(&text).unwrap().gateway().unwrap()
    }

    #[test]
    fn an_entry_reaches_its_exits_in_one_way() {
        let exits = |yaml: &str| match gateway(&format!("role: Entry\n{yaml}")) {
            Gateway::Entry(entry) => (entry.exits, entry.session.prompts, entry.pool),
            other => panic!("{other:?}"),
        };
        let addresses = |fallback: Option<&str>| Exits::Addresses {
            connect: "far:1".to_owned(),
            fallback: fallback.map(str::to_owned),
        };
        let by_address = exits("connect: far:1\nconnectFallback: other:2\n");
        assert_eq!(
            by_address,
            (addresses(Some("other:2")), false, Pool::GROWING)
        );
        let command = Exits::Command(vec!["ssh".to_owned(), "far".to_owned()]);
        let by_kcp = exits("connect: far:1\ntransport: Kcp\n");
        assert_eq!(by_kcp, (addresses(None), false, Pool::ONE));
        let by_command = exits("connectCommand: [ssh, far]\n");
        assert_eq!(by_command, (command, true, Pool::ONE));
    }

    #[test]
    fn an_exit_has_carriers_of_one_origin() {
        let arrivals = |yaml: &str| match gateway(&format!("role: Exit\n{yaml}")) {
            Gateway::Exit(exit) => (exit.arrivals, exit.session.resume),
            other => panic!("{other:?}"),
        };
        let socket = Arrivals::Socket("0.0.0.0:64000".to_owned());
        assert_eq!(arrivals("listen: 0.0.0.0:64000\n"), (socket, true));
        // Its one carrier ends with the process.
        let stdio = format!("listen: {}\n", crate::LISTEN_STDIO);
        assert_eq!(arrivals(&stdio), (Arrivals::Stdio, false));
        let kcp = Arrivals::Kcp("0.0.0.0:64000".to_owned());
        assert_eq!(
            arrivals("listen: 0.0.0.0:64000\ntransport: Kcp\n"),
            (kcp, true)
        );
        let visited = "connect: middle:1\nrendezvous: {name: site, secretFile: /secret}\n";
        let rendezvous = Arrivals::Rendezvous("middle:1".to_owned());
        assert_eq!(arrivals(visited), (rendezvous, true));
    }

    #[test]
    fn how_many_carriers_there_are_varies_where_an_entry_may_choose_and_at_every_exit_that_resumes()
    {
        let varies = |yaml: &str| match gateway(yaml) {
            Gateway::Entry(entry) => entry.session.carriers_vary,
            Gateway::Exit(exit) => exit.session.carriers_vary,
            Gateway::Rendezvous(_) => panic!("it has no session"),
        };
        let entry = "role: Entry\nconnect: far:1\n";
        assert!(varies(entry));
        for fixed in [
            "pool: {min: 2, max: 2}\n",
            "resume: false\n",
            "protocol: Jmux\n",
        ] {
            assert!(!varies(&format!("{entry}{fixed}")), "{fixed}");
        }
        let exit = "role: Exit\nlisten: 0.0.0.0:64000\n";
        assert!(varies(exit));
        assert!(!varies(&format!("{exit}resume: false\n")));
    }

    #[test]
    fn rules_of_either_form_are_in_the_policy_that_is_in_force() {
        for allow in ["allow: ['a:1']\n", "policy: {allow: ['a:1']}\n"] {
            let text =
                format!("role: Exit\nsecurity: {{mode: None}}\nlisten: 0.0.0.0:64000\n{allow}");
            let policy = Config::from_yaml(&text).unwrap().reloadable().policy;
            assert_eq!(policy.allow, ["a:1".parse().unwrap()], "{allow}");
        }
    }
}

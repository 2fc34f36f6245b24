//! A checked configuration, split into the static part of a role ([`Gateway`]) and the part that a
//! running gateway reloads ([`Reloadable`]).

use std::time::Duration;

use crate::{
    Cidr, Config, ConfigError, CongestionControl, Connect, ListenRule, Listener, MeetingPlace,
    Memory, Network, NetworkPeer, Policy, Pool, Protocol, Role, SESSIONS_DEFAULT, Security,
    Timeouts, Transport, WebSocket,
};

/// The static configuration of a gateway, with the fields of its role only. A change needs a
/// restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gateway {
    /// Accepts clients and dials the exit.
    Entry(Entry),
    /// Accepts carriers and dials targets.
    Exit(Exit),
    /// Joins the connections of entries and exits.
    Rendezvous(Rendezvous),
}

/// The static configuration of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Configuration of the gateway's sessions.
    pub session: SessionConfig,
    /// The value of [`Config::connect`].
    pub exits: Vec<Connect>,
    /// The transport of the entry's carriers.
    pub transport: Transport,
    /// If set, carriers are WebSocket connections. With transport Auto, the entry may choose
    /// WebSocket.
    pub web_socket: Option<WebSocket>,
    /// The number of carriers of each session.
    pub pool: Pool,
    /// If set, the gateway carries IP packets between the networks of both sides.
    pub network: Option<Network>,
}

/// The static configuration of an exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Configuration of the gateway's sessions.
    pub session: SessionConfig,
    /// How the exit accepts carriers.
    pub arrivals: Arrivals,
    /// If set, carriers are WebSocket connections. With [`Arrivals::Any`], each entry chooses
    /// whether to use WebSocket.
    pub web_socket: Option<WebSocket>,
    /// Maximum number of concurrent carriers.
    pub carriers_max: u32,
    /// The second listener, for SSH carriers: the configuration of its sessions, and its
    /// `addr:port`.
    pub ssh: Option<(SessionConfig, String)>,
    /// If set, the gateway carries IP packets between the networks of both sides.
    pub network: Option<Network>,
}

/// How an exit accepts carriers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrivals {
    /// Listens on `addr:port` or `unix:/path`.
    Socket(String),
    /// Listens for KCP on `addr:port`.
    Kcp(String),
    /// Listens for TCP and for KCP on `addr:port`.
    Any(String),
    /// The process's standard input and output are its only carrier.
    Stdio,
    /// Registers at each rendezvous.
    Rendezvous(Vec<MeetingPlace>),
}

/// The static configuration of a rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// `addr:port` on which the rendezvous accepts leaves.
    pub listen: String,
    /// Maximum number of concurrent visits.
    pub carriers_max: u32,
}

/// Configuration of each session of an entry or exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// The mux protocol.
    pub protocol: Protocol,
    /// The value of [`Config::packet_bytes`].
    pub packet_bytes: Option<u16>,
    /// The congestion control of carriers.
    pub congestion_control: CongestionControl,
    /// Whether the number of carriers of a session may change. The value is true only with
    /// `resume`: for an entry whose pool may grow, and for every exit, since an exit does not know
    /// the pools of its entries.
    pub carriers_vary: bool,
    /// Whether this end agrees that streams survive the loss of their carrier.
    pub resume: bool,
    /// Whether the kernel moves payload (splice(2)).
    pub splice: bool,
    /// Memory bounds of one session.
    pub memory: Memory,
    /// Maximum number of streams per session.
    pub streams_max: u32,
    /// Whether sessions carry IP packets in addition to streams.
    pub packets: bool,
    /// The time after which a silent carrier is probed.
    pub liveness: Duration,
    /// Whether carriers come from a command, which may prompt a person for a password. The
    /// hello of the peer then has more time to arrive.
    pub prompts: bool,
}

/// The fields that a running gateway reloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloadable {
    /// The value of [`Config::listeners`].
    pub listeners: Vec<Listener>,
    /// The rules for targets.
    pub policy: Policy,
    /// The value of [`Config::allow_listen`].
    pub allow_listen: Vec<ListenRule>,
    /// The value of [`Config::trusted_proxies`].
    pub trusted_proxies: Vec<Cidr>,
    /// The value of [`Config::timeouts`].
    pub timeouts: Timeouts,
    /// The value of [`Memory::sessions`].
    pub sessions: Option<u32>,
    /// The value of [`Network::peers`].
    pub network_peers: Vec<NetworkPeer>,
    /// [`Config::trusted`], of which a gateway reloads only the peers.
    pub security: Security,
}

impl Reloadable {
    /// The number of sessions that an exit expects.
    #[must_use]
    pub fn sessions_expected(&self) -> u32 {
        self.sessions.unwrap_or(SESSIONS_DEFAULT)
    }
}

impl Config {
    /// The static part of the configuration.
    ///
    /// # Errors
    /// A field that the role needs is missing. [`Self::check`] reports the same error.
    pub fn gateway(&self) -> Result<Gateway, ConfigError> {
        let missing = |field| ConfigError::field(field, "is missing");
        let listen = || self.listen.clone().ok_or_else(|| missing("listen"));
        let web_socket = self.web_socket.clone();
        let carriers_max = self.limits.carriers;
        Ok(match self.role {
            Role::Entry => Gateway::Entry(Entry {
                session: self.session(),
                exits: self.connect.clone(),
                transport: self.transport,
                web_socket,
                pool: self.pool(),
                network: self.network.clone(),
            }),
            Role::Exit => Gateway::Exit(Exit {
                session: self.session(),
                arrivals: if !self.rendezvous.is_empty() {
                    Arrivals::Rendezvous(self.rendezvous.clone())
                } else if self.is_stdio() {
                    Arrivals::Stdio
                } else {
                    match self.transport {
                        Transport::Tcp | Transport::WebSocket => Arrivals::Socket(listen()?),
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

    /// The session configuration of an entry or exit.
    #[must_use]
    pub fn session(&self) -> SessionConfig {
        let (resume, pool) = (self.resumes(), self.pool());
        SessionConfig {
            protocol: self.protocol,
            packet_bytes: self.packet_bytes,
            congestion_control: self.congestion_control,
            carriers_vary: resume && (self.role == Role::Exit || pool.min < pool.max()),
            resume,
            splice: self.splice,
            memory: self.memory,
            streams_max: self.limits.streams,
            packets: self.network.is_some(),
            liveness: Duration::from_secs(self.liveness_seconds.into()),
            prompts: self.command().is_some(),
        }
    }

    /// The fields that a running gateway reloads.
    #[must_use]
    pub fn reloadable(&self) -> Reloadable {
        Reloadable {
            listeners: self.listeners(),
            policy: Policy {
                allow: self.allow.clone(),
                deny: self.deny.clone(),
                protected: self.protected_cidrs.clone(),
                nat64_prefixes: self.nat64_prefixes.clone(),
            },
            allow_listen: self.allow_listen.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            timeouts: self.timeouts,
            sessions: self.memory.sessions,
            network_peers: self
                .network
                .as_ref()
                .map_or(Vec::new(), |network| network.peers.clone()),
            security: self.trusted(),
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
            Gateway::Entry(entry) => {
                let exit = entry.exits.into_iter().next().unwrap();
                let way = (exit.address, exit.command.join(" "));
                (way, entry.session.prompts, entry.pool)
            }
            other => panic!("{other:?}"),
        };
        let by_address = (Some("far:1".to_owned()), String::new());
        let far = "connect:\n- name: far\n  address: far:1\n";
        assert_eq!(exits(far), (by_address.clone(), false, Pool::GROWING));
        let by_kcp = exits(&format!("{far}transport: KCP\n"));
        assert_eq!(by_kcp, (by_address, false, Pool::ONE));
        let by_command = exits("connect: [{name: far, command: [ssh, far]}]\n");
        let command = (None, "ssh far".to_owned());
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
        // With `stdio`, the only carrier ends with the process, so no stream can resume.
        let stdio = format!("listen: {}\n", crate::LISTEN_STDIO);
        assert_eq!(arrivals(&stdio), (Arrivals::Stdio, false));
        let kcp = Arrivals::Kcp("0.0.0.0:64000".to_owned());
        assert_eq!(
            arrivals("listen: 0.0.0.0:64000\ntransport: KCP\n"),
            (kcp, true)
        );
    }

    #[test]
    fn how_many_carriers_there_are_varies_where_an_entry_may_choose_and_at_every_exit_that_resumes()
    {
        let varies = |yaml: &str| match gateway(yaml) {
            Gateway::Entry(entry) => entry.session.carriers_vary,
            Gateway::Exit(exit) => exit.session.carriers_vary,
            Gateway::Rendezvous(_) => panic!("a rendezvous has no session"),
        };
        let entry = "role: Entry\nconnect:\n- name: far\n  address: far:1\n";
        assert!(varies(entry));
        for fixed in [
            "pool: {min: 2, max: 2}\n",
            "resume: false\n",
            "protocol: JMUX\n",
        ] {
            assert!(!varies(&format!("{entry}{fixed}")), "{fixed}");
        }
        let exit = "role: Exit\nlisten: 0.0.0.0:64000\n";
        assert!(varies(exit));
        assert!(!varies(&format!("{exit}resume: false\n")));
    }
}

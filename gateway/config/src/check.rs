//! Checks each field of a configuration, and fields that depend on each other.

use crate::{
    ByteSize, Config, ConfigError, LIVENESS_SECONDS_MAX, LIVENESS_SECONDS_MIN, PACKET_BYTES_MIN,
    Protocol, RECEIVE_MIN, RETAIN_MIN, Role, SESSIONS_MAX, STREAM_RECEIVE_MIN, TIMEOUT_SECONDS_MAX,
    WORKERS_MAX, admin_hosts, carrier, connect, listener, network, policy, protocol, proxy,
    public_keys, rendezvous, reverse, server_tls, ssh, transport, trusted_proxies,
};

impl Config {
    /// Checks the rules that the types cannot express: required fields of a role, ports, bounds and
    /// unique names.
    ///
    /// # Errors
    /// [`ConfigError`] of the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_role()?;
        connect::check(self)?;
        proxy::check(self)?;
        protocol::check(self)?;
        self.check_packet_bytes()?;
        self.security.check(self.role)?;
        public_keys::check(self)?;
        server_tls::check(self)?;
        ssh::check(self)?;
        if let Some(web_socket) = &self.web_socket {
            web_socket.check(self.role)?;
        }
        admin_hosts::check(self)?;
        listener::check(self)?;
        policy::check(self)?;
        reverse::check(self)?;
        network::check(self)?;
        rendezvous::check(self)?;
        trusted_proxies::check(self)?;
        transport::check(self)?;
        self.check_memory()?;
        self.check_pool()?;
        self.check_limits()?;
        self.check_times()?;
        match &self.admin {
            Some(admin) => check_addr_port("admin", admin),
            None => Ok(()),
        }
    }

    fn check_memory(&self) -> Result<(), ConfigError> {
        for (field, size, least) in [
            ("memory.receive", self.memory.receive, RECEIVE_MIN),
            ("memory.retain", self.memory.retain, RETAIN_MIN),
        ] {
            if size < least {
                let problem = format!("{size} is less than the minimum of {least}");
                return Err(ConfigError::field(field, problem));
            }
        }
        let sessions = self.memory.sessions.unwrap_or(1);
        ConfigError::unless_in("memory.sessions", sessions, 1..=SESSIONS_MAX)
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        ConfigError::unless_in("limits.streams", self.limits.streams, 1..=1_000_000)?;
        let least = ByteSize(u64::from(self.limits.streams) * STREAM_RECEIVE_MIN.0);
        if self.protocol == Protocol::Jmux && self.memory.receive < least {
            return Err(ConfigError::field(
                "limits.streams",
                format!(
                    "{} streams need a memory.receive of at least {least} with protocol JMUX, not {}",
                    self.limits.streams, self.memory.receive
                ),
            ));
        }
        ConfigError::unless_in("limits.carriers", self.limits.carriers, 1..=1024)?;
        ConfigError::unless_in("workers", self.workers.unwrap_or(1), 1..=WORKERS_MAX)
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        if self.drain.accept_seconds > self.drain.deadline_seconds {
            return Err(ConfigError::field(
                "drain.acceptSeconds",
                "is greater than drain.deadlineSeconds",
            ));
        }
        self.timeouts.check()?;
        let stall = self.memory.stall_seconds;
        ConfigError::unless_in("memory.stallSeconds", stall, 0..=TIMEOUT_SECONDS_MAX)?;
        let bounds = LIVENESS_SECONDS_MIN..=LIVENESS_SECONDS_MAX;
        ConfigError::unless_in("livenessSeconds", self.liveness_seconds, bounds)
    }

    fn check_pool(&self) -> Result<(), ConfigError> {
        let Some(pool) = self.pool else {
            return Ok(());
        };
        pool.check()?;
        let problem = if pool.max() == 1 {
            return Ok(());
        } else if self.role != Role::Entry {
            "only an entry chooses the number of carriers: remove the field"
        } else if !self.protocol.can().several_carriers {
            "protocol JMUX has one carrier per session: remove the field"
        } else if !self.resume && self.protocol.can().resume {
            "several carriers per session need resume: true"
        } else {
            return Ok(());
        };
        Err(ConfigError::field("pool", problem))
    }

    fn check_packet_bytes(&self) -> Result<(), ConfigError> {
        let problem = match self.packet_bytes {
            None => return Ok(()),
            Some(_) if self.protocol != Protocol::Jmux || self.role != Role::Entry => {
                "only an entry with protocol JMUX offers a packet size: remove the field".to_owned()
            }
            Some(bytes) if bytes < PACKET_BYTES_MIN => {
                format!("{bytes} is less than the minimum of {PACKET_BYTES_MIN}")
            }
            Some(_) => return Ok(()),
        };
        Err(ConfigError::field("packetBytes", problem))
    }

    fn check_role(&self) -> Result<(), ConfigError> {
        let waits = !self.rendezvous.is_empty();
        let problem = match (self.role, self.listen.as_deref()) {
            (Role::Entry, None) => return Ok(()),
            (Role::Exit, None) if waits => return Ok(()),
            (Role::Entry, Some(_)) => "an entry does not listen for carriers: remove the field",
            (Role::Exit, Some(_)) if waits => {
                "an exit behind a rendezvous does not listen for carriers: remove the field"
            }
            (Role::Exit, Some(listen)) => return carrier::check_listen(self, listen),
            (Role::Rendezvous, Some(listen)) => return check_addr_port("listen", listen),
            (Role::Exit, None) => "an exit needs an ADDRESS:PORT to listen for carriers",
            (Role::Rendezvous, None) => {
                "a rendezvous needs an ADDRESS:PORT to listen for leaf gateways"
            }
        };
        Err(ConfigError::field("listen", problem))
    }
}

pub(crate) fn check_addr_port(field: &str, text: &str) -> Result<(), ConfigError> {
    ConfigError::unless_none(addr_port_problem(text).map(|problem| (field, problem)))
}

/// Why the text is no address to listen on. `None`: it is one.
pub(crate) fn addr_port_problem(text: &str) -> Option<String> {
    let problem = || format!("{text:?} is not ADDRESS:PORT, such as 0.0.0.0:8080 or [::]:8080");
    text.parse::<std::net::SocketAddr>().is_err().then(problem)
}

pub(crate) fn check_host_port(field: &str, text: &str) -> Result<(), ConfigError> {
    let problem = || {
        ConfigError::field(
            field,
            format!("{text:?} is not HOST:PORT, such as exit.example.com:64000"),
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
    let port: u16 = port.parse().map_err(|_| problem())?;
    if host.is_empty() || port == 0 || (host.contains(':') && !host.starts_with('[')) {
        return Err(problem());
    }
    Ok(())
}

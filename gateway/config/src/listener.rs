//! The listening ports of an entry, in one form.

use crate::check::addr_port_problem;
use crate::protocol::cannot_listen;
use crate::target::{self, UNIX_PREFIX};
use crate::{
    Auth, Config, ConfigError, Direction, FORWARDS_MAX, Forward, Limits, PROXIES_MAX, Priority,
    ProxyListen, ProxyListener, ProxyProtocol, Role, TARGETS_MAX, Target, proxies,
};

/// A listening port: a forward, a reverse forward or a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Unique name, used in logs and metrics.
    pub name: String,
    /// The listen address: `addr:port` or `unix:/path`.
    pub listen: String,
    /// The protocol of a proxy's clients. `None`: each connection is one stream to the target.
    pub protocol: Option<ProxyListen>,
    /// The targets of streams whose clients do not name a target, in the order in which they are
    /// dialled.
    pub targets: Vec<Target>,
    /// The users of a proxy. `None`: every client may connect.
    pub auth: Option<Auth>,
    /// PROXY protocol headers on the connections.
    pub proxy_protocol: ProxyProtocol,
    /// Which side listens.
    pub direction: Direction,
    /// The priority of new streams.
    pub priority: Priority,
    /// Limits of the streams.
    pub limits: Limits,
}

impl Listener {
    /// Whether the target of every connection is the target of the port. Otherwise clients may name
    /// their targets.
    #[must_use]
    pub const fn has_fixed_target(&self) -> bool {
        self.protocol.is_none()
    }
}

impl From<&Forward> for Listener {
    fn from(forward: &Forward) -> Self {
        Self {
            name: forward.name.clone(),
            listen: forward.listen.clone(),
            protocol: None,
            targets: forward.targets.clone(),
            auth: None,
            proxy_protocol: forward.proxy_protocol,
            direction: Direction::EntryToExit,
            priority: forward.priority,
            limits: forward.limits,
        }
    }
}

impl From<&ProxyListener> for Listener {
    fn from(proxy: &ProxyListener) -> Self {
        Self {
            name: proxy.name.clone(),
            listen: proxy.listen.clone(),
            protocol: Some(proxy.protocol),
            targets: proxy.fallback_targets.clone(),
            auth: proxy.auth(),
            proxy_protocol: ProxyProtocol {
                accept: proxy.accept_proxy_protocol,
                send: proxy.send_proxy_protocol,
            },
            direction: Direction::EntryToExit,
            priority: proxy.priority,
            limits: proxy.limits,
        }
    }
}

/// A list of the file.
const FORWARDS: &str = "forwards";
const REVERSE_FORWARDS: &str = "reverseForwards";
const PROXIES: &str = "proxies";

impl Config {
    /// The listening ports of the entry: its forwards, reverse forwards and proxies.
    #[must_use]
    pub fn listeners(&self) -> Vec<Listener> {
        self.listed().into_iter().map(|(_, _, port)| port).collect()
    }

    /// Each listening port, with the name of its list and its index in this list.
    fn listed(&self) -> Vec<(&'static str, usize, Listener)> {
        fn of<'a, T>(list: &'static str, all: &'a [T]) -> Vec<(&'static str, usize, Listener)>
        where
            Listener: From<&'a T>,
        {
            let ports = all.iter().map(Listener::from).enumerate();
            ports.map(|(index, port)| (list, index, port)).collect()
        }
        let mut all = of(REVERSE_FORWARDS, &self.reverse_forwards);
        for (_, _, port) in &mut all {
            port.direction = Direction::ExitToEntry;
        }
        all.splice(..0, of(FORWARDS, &self.forwards));
        all.extend(of(PROXIES, &self.proxies));
        all
    }
}

/// Checks that only an entry has listening ports, that names and listen addresses are unique, and
/// that targets, limits and protocols are valid.
pub(crate) fn check(config: &Config) -> Result<(), ConfigError> {
    for (field, length, most) in [
        (FORWARDS, config.forwards.len(), FORWARDS_MAX),
        (
            REVERSE_FORWARDS,
            config.reverse_forwards.len(),
            FORWARDS_MAX,
        ),
        (PROXIES, config.proxies.len(), PROXIES_MAX),
    ] {
        if length > 0 && config.role != Role::Entry {
            let problem = "only an entry has this field: remove the field";
            return Err(ConfigError::field(field, problem));
        }
        ConfigError::unless_at_most(field, length, most)?;
    }
    let all = config.listed();
    for (at, (list, index, port)) in all.iter().enumerate() {
        if let Some((field, problem)) = problem(config, port, &all[..at]) {
            // The fallback targets of a proxy are its only targets.
            let field = match field.strip_prefix("targets") {
                Some(rest) if *list == PROXIES => format!("fallbackTargets{rest}"),
                None if *list == PROXIES && field == "proxyProtocol.send" => {
                    "sendProxyProtocol".to_owned()
                }
                _ => field,
            };
            let field = format!("{list}[{index}].{field}");
            return Err(ConfigError::field(field, problem));
        }
    }
    proxies::check(&config.proxies)
}

/// The first invalid field of `port`, and the problem. `earlier`: the ports before it.
fn problem(
    config: &Config,
    port: &Listener,
    earlier: &[(&'static str, usize, Listener)],
) -> Option<(String, String)> {
    let wrong = |field: &str, problem: String| Some((field.to_owned(), problem));
    let (name, can) = (config.protocol.as_str(), config.protocol.can());
    if port.name.is_empty() || port.name.len() > 63 {
        return wrong("name", "must have 1 to 63 characters".to_owned());
    }
    if earlier.iter().any(|(_, _, other)| other.name == port.name) {
        let problem = format!("{:?} is used by more than one listening port", port.name);
        return wrong("name", problem);
    }
    let is_reverse = port.direction == Direction::ExitToEntry;
    let problem = match port.listen.strip_prefix(UNIX_PREFIX) {
        Some(_) if is_reverse => Some(
            "must be ADDRESS:PORT, because an exit opens no Unix sockets for entries".to_owned(),
        ),
        Some(path) => target::unix_path_problem(path),
        None => addr_port_problem(&port.listen),
    };
    if let Some(problem) = problem {
        return wrong("listen", problem);
    }
    let is_there = |(_, _, other): &(_, _, Listener)| {
        other.direction == port.direction && other.listen == port.listen
    };
    if earlier.iter().any(is_there) {
        let problem = format!("{} is used by more than one listening port", port.listen);
        return wrong("listen", problem);
    }
    if is_reverse && !can.listen {
        return wrong("listen", cannot_listen(config.protocol));
    }
    let count = port.targets.len();
    if count > TARGETS_MAX || (count == 0 && port.has_fixed_target()) {
        let problem = format!("has {count} entries, but 1 to {TARGETS_MAX} are allowed");
        return wrong("targets", problem);
    }
    for (at, target) in port.targets.iter().enumerate() {
        if let Some((field, problem)) = target.problem() {
            return wrong(&format!("targets[{at}].{field}"), problem);
        }
        if matches!(target, Target::Unix(_)) && !can.unix_targets {
            let problem =
                format!("protocol {name} supports HOST:PORT targets only, not Unix sockets");
            return wrong(&format!("targets[{at}]"), problem);
        }
    }
    if is_reverse && port.proxy_protocol != ProxyProtocol::default() {
        let problem = "is not for reverse forwards: remove the field";
        return wrong("proxyProtocol", problem.to_owned());
    }
    if port.proxy_protocol.sends() && !can.source {
        let problem = format!(
            "protocol {name} cannot send the client's address to the exit: remove the field"
        );
        return wrong("proxyProtocol.send", problem);
    }
    let (field, problem) = port.limits.problem()?;
    wrong(&format!("limits.{field}"), problem)
}

//! Flags for the listeners of an entry.

use std::net::IpAddr;

use clap::Args;
use muxtunnel_gateway_config::{
    Accept, BitRate, Forward, Limits, Priority, ProxyListen, ProxyListener, ProxyProtocol, Send,
    Target, UNIX_PREFIX,
};

/// The listen address if a flag specifies only a port.
const BIND_DEFAULT: &str = "127.0.0.1";

/// Listeners, and settings that apply to all of them.
#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    #[command(flatten)]
    ways: Ways,
    /// Serve only SOCKS5 and HTTP clients that send this user name and the password in
    /// --proxy-password-file.
    #[arg(long, value_name = "USER", requires = "proxy_password_file")]
    proxy_auth: Option<String>,
    /// The file with the password, or with the bcrypt hash of the password. `htpasswd -nB` prints
    /// the hash after the colon.
    #[arg(long, value_name = "FILE", requires = "proxy_auth")]
    proxy_password_file: Option<String>,
    /// Require each client connection to begin with a PROXY protocol header, version 2, which
    /// contains the client's address.
    #[arg(long)]
    accept_proxy_protocol: bool,
    /// Request that the exit begins each connection to a target with a PROXY protocol header,
    /// version 2.
    #[arg(long)]
    send_proxy_protocol: bool,
    /// Maximum number of concurrent streams of each forward; further connections are reset.
    #[arg(long, value_name = "N")]
    limit_streams: Option<u32>,
    /// Maximum number of new connections of each forward per second; further connections are reset.
    #[arg(long, value_name = "N")]
    limit_opens: Option<u32>,
    /// Maximum payload of each forward per second in each direction, such as 100M; further
    /// payload waits.
    #[arg(long, value_name = "RATE")]
    limit_rate: Option<BitRate>,
}

/// The listeners.
#[derive(Debug, Args)]
struct Ways {
    /// Listen on PORT (of 127.0.0.1, or of BIND) and forward to HOST:PORT (repeatable). unix:/PATH
    /// can replace either address. With priority Auto, new streams and streams that send little go
    /// first. With Interactive, all streams of the forward go before bulk streams. With Bulk, they
    /// go last [default: Auto].
    #[arg(long, value_name = "[BIND:]PORT:HOST:PORT[,PRIORITY]", value_parser = parse_forward)]
    forward: Vec<Aimed>,
    /// Listen on this port, such as 1080, for SOCKS5 clients (repeatable). Each client names its
    /// target. The exit must allow the target.
    #[arg(long, value_name = "[BIND:]PORT", value_parser = parse_listen)]
    socks5: Vec<String>,
    /// Listen on this port, such as 3128, as an HTTP proxy (repeatable). The proxy accepts CONNECT,
    /// and plain requests for http:// URLs.
    #[arg(long, value_name = "[BIND:]PORT", value_parser = parse_listen)]
    http_proxy: Vec<String>,
    /// Listen for clients of SOCKS5, SOCKS4, SOCKS4a and HTTP on one port (repeatable). With
    /// HOST:PORT, clients of other protocols are forwarded to HOST:PORT.
    #[arg(long, value_name = "[BIND:]PORT[:HOST:PORT]", value_parser = parse_auto)]
    auto: Vec<Typed>,
    /// Request that the exit listens on PORT (of its 127.0.0.1, or of BIND), and forward to
    /// HOST:PORT as seen from this host (repeatable). The exit must allow the address
    /// (--allow-listen).
    #[arg(long, value_name = "[BIND:]PORT:HOST:PORT[,PRIORITY]", value_parser = parse_forward)]
    reverse: Vec<Aimed>,
    /// Listen for connections that iptables redirects to this port (repeatable), and forward each
    /// connection to its original destination.
    #[arg(long, value_name = "[BIND:]PORT", value_parser = parse_listen)]
    transparent: Vec<String>,
}

/// A listener with a target.
#[derive(Debug, Clone, PartialEq)]
struct Aimed {
    listen: String,
    target: Target,
    priority: Priority,
}

/// A listener whose clients may name their targets.
#[derive(Debug, Clone, PartialEq)]
struct Typed {
    listen: String,
    target: Option<Target>,
    priority: Priority,
}

impl Typed {
    fn at(listen: String) -> Self {
        Self {
            listen,
            target: None,
            priority: Priority::Auto,
        }
    }
}

impl From<Aimed> for Typed {
    fn from(aimed: Aimed) -> Self {
        Self {
            listen: aimed.listen,
            target: Some(aimed.target),
            priority: aimed.priority,
        }
    }
}

impl ForwardArgs {
    /// The requested listeners.
    pub(super) fn listeners(self) -> Listeners {
        let limits = Limits {
            streams: self.limit_streams,
            opens_per_second: self.limit_opens,
            bits_per_second: self.limit_rate,
        };
        let proxy_protocol = ProxyProtocol {
            accept: self.accept_proxy_protocol.then_some(Accept::Required),
            send: self.send_proxy_protocol.then_some(Send::V2),
        };
        let (user, password_file) = (self.proxy_auth, self.proxy_password_file);
        let ways = self.ways;
        let forward = |typed: Aimed| Forward {
            name: typed.listen.clone(),
            listen: typed.listen,
            targets: vec![typed.target],
            proxy_protocol,
            priority: typed.priority,
            limits,
        };
        let reverse = |typed: Aimed| Forward {
            name: format!("reverse {}", typed.listen),
            proxy_protocol: ProxyProtocol::default(),
            ..forward(typed)
        };
        let proxy = |(protocol, typed): (ProxyListen, Typed)| ProxyListener {
            name: typed.listen.clone(),
            protocol,
            listen: typed.listen,
            fallback_targets: typed.target.into_iter().collect(),
            users_file: None,
            user: user.clone().filter(|_| protocol.asks()),
            password_file: password_file.clone().filter(|_| protocol.asks()),
            accept_proxy_protocol: proxy_protocol.accept,
            send_proxy_protocol: proxy_protocol.send,
            priority: typed.priority,
            limits,
        };
        let at = |ports: Vec<String>| ports.into_iter().map(Typed::at).collect();
        let proxies = [
            (ProxyListen::Socks5, at(ways.socks5)),
            (ProxyListen::Http, at(ways.http_proxy)),
            (ProxyListen::Auto, ways.auto),
            (ProxyListen::Transparent, at(ways.transparent)),
        ];
        let proxies = proxies
            .into_iter()
            .flat_map(|(protocol, all)| all.into_iter().map(move |typed| (protocol, typed)));
        Listeners {
            forwards: ways.forward.into_iter().map(forward).collect(),
            reverse_forwards: ways.reverse.into_iter().map(reverse).collect(),
            proxies: proxies.map(proxy).collect(),
        }
    }
}

/// The listeners of an entry.
pub(super) struct Listeners {
    pub(super) forwards: Vec<Forward>,
    pub(super) reverse_forwards: Vec<Forward>,
    pub(super) proxies: Vec<ProxyListener>,
}

impl Listeners {
    pub(super) const fn is_empty(&self) -> bool {
        self.forwards.is_empty() && self.reverse_forwards.is_empty() && self.proxies.is_empty()
    }
}

/// Parses `[BIND:]PORT:HOST:PORT[,PRIORITY]` from the right, since BIND may be missing.
fn parse_forward(text: &str) -> Result<Aimed, String> {
    let (text, priority) = match text.rsplit_once(',') {
        Some((text, priority)) => (text, priority.parse()?),
        None => (text, Priority::Auto),
    };
    let wrong = |problem: &str| {
        format!(
            "{problem}; expected [BIND:]PORT:HOST:PORT[,PRIORITY], such as 8080:web.internal:80 or [::1]:8080:[2001:db8::1]:80; unix:/PATH can replace either address"
        )
    };
    let (listen, target) = match text.rsplit_once(":unix:/") {
        Some((listen, path)) => (listen, Target::Unix(format!("/{path}"))),
        None => parse_tcp_target(text).map_err(|problem| wrong(&problem))?,
    };
    Ok(Aimed {
        listen: parse_listen(listen).map_err(|problem| wrong(&problem))?,
        target,
        priority,
    })
}

/// Parses the target at the end of `text`. Also returns the text before the target.
fn parse_tcp_target(text: &str) -> Result<(&str, Target), String> {
    let (rest, port) = text.rsplit_once(':').ok_or("the target port is missing")?;
    let port = parse_port(port, "target")?;
    let (listen, host) = match rest.strip_suffix(']') {
        Some(rest) => rest
            .rsplit_once(":[")
            .ok_or("the target's opening bracket is missing")?,
        None => rest.rsplit_once(':').ok_or("the target host is missing")?,
    };
    if host.is_empty() {
        return Err("the target host is empty".to_owned());
    }
    let host = host.to_owned();
    Ok((listen, Target::Tcp { host, port }))
}

fn parse_port(text: &str, which: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the {which} port {text:?} is not from 1 to 65535")),
    }
}

/// Converts `[BIND:]PORT` or `unix:/PATH` to the form of the configuration.
fn parse_listen(text: &str) -> Result<String, String> {
    if text.starts_with(UNIX_PREFIX) {
        return Ok(text.to_owned());
    }
    let (bind, port) = text.rsplit_once(':').unwrap_or((BIND_DEFAULT, text));
    let port = parse_port(port, "listen")?;
    let bind = if bind == "localhost" {
        BIND_DEFAULT
    } else {
        bind
    };
    let address = bind
        .strip_prefix('[')
        .and_then(|bind| bind.strip_suffix(']'));
    let is_address = match address {
        Some(v6) => v6.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()),
        None => bind
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv4()),
    };
    if is_address {
        Ok(format!("{bind}:{port}"))
    } else {
        Err(format!(
            "{bind:?} is not an address to listen on, such as 127.0.0.1, [::1] or localhost"
        ))
    }
}

/// Parses a listener with or without a target.
fn parse_auto(text: &str) -> Result<Typed, String> {
    match parse_listen(text) {
        Ok(listen) if !text.contains(":unix:/") => Ok(Typed::at(listen)),
        _ => parse_forward(text).map(Typed::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aimed(listen: &str, target: &str, priority: Priority) -> Aimed {
        let target = match target.rsplit_once(' ') {
            Some((host, port)) => Target::Tcp {
                host: host.to_owned(),
                port: port.parse().unwrap(),
            },
            None => Target::Unix(target.to_owned()),
        };
        Aimed {
            listen: listen.to_owned(),
            target,
            priority,
        }
    }

    #[test]
    fn forwards_parse() {
        let (auto, bulk) = (Priority::Auto, Priority::Bulk);
        for (text, listen, target, priority) in [
            ("8080:web:80", "127.0.0.1:8080", "web 80", auto),
            (
                "0.0.0.0:8080:10.0.0.1:80",
                "0.0.0.0:8080",
                "10.0.0.1 80",
                auto,
            ),
            (
                "8080:[2001:db8::1]:80",
                "127.0.0.1:8080",
                "2001:db8::1 80",
                auto,
            ),
            ("[::1]:8080:[::2]:80,bulk", "[::1]:8080", "::2 80", bulk),
            ("localhost:8080:web:80", "127.0.0.1:8080", "web 80", auto),
            ("8080:web:80,auto", "127.0.0.1:8080", "web 80", auto),
            (
                "unix:/run/a.sock:web:80",
                "unix:/run/a.sock",
                "web 80",
                auto,
            ),
            (
                "8080:unix:/run/b.sock,bulk",
                "127.0.0.1:8080",
                "/run/b.sock",
                bulk,
            ),
            (
                "unix:/run/a.sock:unix:/run/b.sock",
                "unix:/run/a.sock",
                "/run/b.sock",
                auto,
            ),
        ] {
            assert_eq!(
                parse_forward(text).unwrap(),
                aimed(listen, target, priority),
                "{text}"
            );
        }
        let error = parse_forward("8080:web:80,urgent").unwrap_err();
        assert!(error.contains("Auto, Interactive and Bulk"), "{error}");
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
            "far.example.com:8080:web:80",
        ] {
            let error = parse_forward(text).unwrap_err();
            assert!(
                error.contains("expected [BIND:]PORT:HOST:PORT"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_port_for_all_kinds_of_clients_may_have_a_target() {
        for (text, listen) in [
            ("1080", "127.0.0.1:1080"),
            ("0.0.0.0:1080", "0.0.0.0:1080"),
            ("[::]:1080", "[::]:1080"),
            ("unix:/run/proxy.sock", "unix:/run/proxy.sock"),
        ] {
            assert_eq!(
                parse_auto(text).unwrap(),
                Typed::at(listen.to_owned()),
                "{text}"
            );
        }
        for (text, listen, target) in [
            ("1080:web:80", "127.0.0.1:1080", "web 80"),
            ("[::]:1080:web:80", "[::]:1080", "web 80"),
            ("1080:unix:/run/a", "127.0.0.1:1080", "/run/a"),
            ("unix:/run/a:unix:/run/b", "unix:/run/a", "/run/b"),
        ] {
            let expected = aimed(listen, target, Priority::Auto).into();
            assert_eq!(parse_auto(text).unwrap(), expected, "{text}");
        }
        assert!(parse_auto("1080:web").is_err() && parse_auto("").is_err());
    }
}

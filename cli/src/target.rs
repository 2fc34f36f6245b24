//! Targets on the command line: rules of a peer, and `PORT:HOST:PORT` of `connect`.

use muxtunnel_crds::Rule;
use muxtunnel_gateway_config::{HostPattern, Ports, RuleError};

/// Parses `HOST|*.DOMAIN|CIDR[:PORT[-PORT]]`.
///
/// # Errors
/// The expected form.
pub fn rule(text: &str) -> Result<Rule, String> {
    let problem = match text.parse() {
        Ok(rule @ Rule { peer: None, .. }) if !matches!(rule.host, HostPattern::Unix(_)) => {
            return Ok(rule);
        }
        Ok(_) => format!("{text:?} is not a host"),
        Err(RuleError { problem, .. }) => problem.to_owned(),
    };
    Err(format!(
        "{problem}; expected HOST, *.DOMAIN, * or CIDR, optionally with :PORT or :PORT-PORT, such as \
         db.internal:5432 or [fd00::]/8:443"
    ))
}

/// Parses a port.
///
/// # Errors
/// The text is not a port.
pub fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("the port {text:?} is not from 1 to 65535")),
    }
}

/// A listening port of this host and its target (`-L`).
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// The text for `muxgate --forward`.
    pub text: String,
    /// The rule that permits the target.
    pub rule: Rule,
}

/// Parses `[BIND:]PORT:HOST:PORT`. `muxgate` checks BIND.
///
/// # Errors
/// The expected form.
pub fn forward(text: &str) -> Result<Forward, String> {
    let wrong = |problem: String| {
        format!("{problem}; expected [BIND:]PORT:HOST:PORT, such as 8080:web.internal:80")
    };
    let (listen, rule) = listen_and_target(text).map_err(wrong)?;
    let port_text = listen.rsplit_once(':').map_or(listen, |(_, port)| port);
    port(port_text).map_err(wrong)?;
    Ok(Forward {
        text: text.to_owned(),
        rule,
    })
}

/// A port of the exit and its target, as seen from this host (`-R`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reverse {
    /// The port of the exit.
    pub port: u16,
    /// `HOST:PORT`.
    pub target: String,
}

/// Parses `PORT:HOST:PORT`.
///
/// # Errors
/// The expected form.
pub fn reverse(text: &str) -> Result<Reverse, String> {
    let wrong = |problem: String| {
        format!("{problem}; expected PORT:HOST:PORT, such as 9000:localhost:3000")
    };
    let (listen, _) = listen_and_target(text).map_err(wrong)?;
    Ok(Reverse {
        port: port(listen).map_err(wrong)?,
        target: text[listen.len() + 1..].to_owned(),
    })
}

/// The text before the target, and the rule of the target `HOST:PORT` at the end.
fn listen_and_target(text: &str) -> Result<(&str, Rule), String> {
    let missing = || "the target is missing".to_owned();
    let (rest, target_port) = text.rsplit_once(':').ok_or_else(missing)?;
    let start = match rest.ends_with(']') {
        true => rest.rfind(":["),
        false => rest.rfind(':'),
    };
    let start = start.ok_or_else(missing)?;
    let host = rest[start + 1..].trim_matches(['[', ']']);
    if host.is_empty() || host.contains(['*', '/']) {
        return Err(format!("{host:?} is not a host"));
    }
    let port = port(target_port)?;
    Ok((&text[..start], rule(&authority(host, port))?))
}

/// `HOST:PORT`, with brackets around an IPv6 address.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// An address of an exit, without brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    /// The port, if the text has one.
    pub port: Option<u16>,
}

/// Parses `HOST[:PORT]`.
///
/// # Errors
/// The expected form.
pub fn address(text: &str) -> Result<Address, String> {
    let wrong = |problem: &str| {
        format!("{problem}; expected HOST or HOST:PORT, such as far.example.com:443")
    };
    let rule: Rule = text
        .parse()
        .map_err(|error: RuleError| wrong(error.problem))?;
    let host = match rule.host {
        HostPattern::Name(name) => name,
        HostPattern::Network(cidr) if cidr.is_single() => cidr.to_string(),
        _ => return Err(wrong(&format!("{text:?} is not a host"))),
    };
    let port = match rule.ports {
        Ports::ALL => None,
        ports if ports.is_single() => Some(ports.first),
        ports => return Err(wrong(&format!("{ports} is not one port"))),
    };
    Ok(Address { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: Option<&str>, cidr: Option<&str>, port: Option<u16>, end: Option<u16>) -> Rule {
        let network = |cidr: &str| HostPattern::Network(cidr.parse().unwrap());
        let name = |host: &str| match host.strip_prefix("*.") {
            _ if host == "*" => HostPattern::Any,
            Some(domain) => HostPattern::Below(domain.to_owned()),
            None => HostPattern::Name(host.to_owned()),
        };
        Rule {
            host: host.map(name).or(cidr.map(network)).unwrap(),
            ports: Ports::of(port, end).unwrap(),
            peer: None,
        }
    }

    #[test]
    fn rules_have_a_host_or_a_network_and_ports() {
        for (text, wanted) in [
            (
                "db.internal:5432",
                of(Some("db.internal"), None, Some(5432), None),
            ),
            ("db.internal", of(Some("db.internal"), None, None, None)),
            (
                "*.internal:80-90",
                of(Some("*.internal"), None, Some(80), Some(90)),
            ),
            ("*", of(Some("*"), None, None, None)),
            (
                "10.0.0.0/8:443",
                of(None, Some("10.0.0.0/8"), Some(443), None),
            ),
            (
                "10.0.0.7:443",
                of(None, Some("10.0.0.7/32"), Some(443), None),
            ),
            (
                "[fd00::]/8:443",
                of(None, Some("fd00::/8"), Some(443), None),
            ),
            (
                "[fd00::1]:443",
                of(None, Some("fd00::1/128"), Some(443), None),
            ),
            ("fd00::1", of(None, Some("fd00::1/128"), None, None)),
        ] {
            assert_eq!(rule(text).unwrap(), wanted, "{text}");
        }
        for text in [
            "",
            ":80",
            "web:0",
            "web:90-80",
            "a b:80",
            "10.0.0.0/33",
            "web/8",
            "[::1",
            "*web:1",
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains("expected HOST"), "{text}: {error}");
        }
    }

    #[test]
    fn an_address_may_have_a_port() {
        for (text, host, port) in [
            ("far.example.com:443", "far.example.com", Some(443)),
            ("far.example.com", "far.example.com", None),
            ("[2001:db8::1]:443", "2001:db8::1", Some(443)),
            ("2001:db8::1", "2001:db8::1", None),
        ] {
            let host = host.to_owned();
            assert_eq!(address(text), Ok(Address { host, port }));
        }
        assert_eq!(authority("2001:db8::1", 443), "[2001:db8::1]:443");
        for text in [
            "",
            ":443",
            "far:0",
            "far:1-2",
            "*:443",
            "10.0.0.0/8:443",
            "[::1",
        ] {
            let error = address(text).unwrap_err();
            assert!(error.contains("expected HOST or"), "{text}: {error}");
        }
    }

    #[test]
    fn forwards_have_the_syntax_of_muxgate() {
        for (text, wanted) in [
            ("8080:web:80", of(Some("web"), None, Some(80), None)),
            (
                "127.0.0.1:8080:10.0.0.7:80",
                of(None, Some("10.0.0.7/32"), Some(80), None),
            ),
            (
                "[::1]:8080:[fd00::1]:80",
                of(None, Some("fd00::1/128"), Some(80), None),
            ),
        ] {
            let forward = forward(text).unwrap();
            assert_eq!((forward.rule, forward.text.as_str()), (wanted, text));
        }
        for text in [
            "8080",
            "8080:web",
            "web:80",
            "0:web:80",
            "8080:*:80",
            "8080::80",
        ] {
            let error = forward(text).unwrap_err();
            assert!(error.contains("expected [BIND:]PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn reverse_forwards_name_a_port_of_the_exit() {
        let wanted = |port, target: &str| Reverse {
            port,
            target: target.to_owned(),
        };
        assert_eq!(
            reverse("9000:localhost:3000").unwrap(),
            wanted(9000, "localhost:3000")
        );
        assert_eq!(
            reverse("9000:[::1]:3000").unwrap(),
            wanted(9000, "[::1]:3000")
        );
        for text in ["9000", "x:localhost:1", "0.0.0.0:9000:localhost:3000"] {
            let error = reverse(text).unwrap_err();
            assert!(error.contains("expected PORT:HOST:PORT"), "{text}: {error}");
        }
    }
}

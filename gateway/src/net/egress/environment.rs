//! Reads the proxy from the environment as curl does. The variables are meant for web traffic, so
//! the proxy applies only if the configuration has `webSocket`. With transport Auto, only the
//! WebSocket carriers use the proxy.
//!
//! `https_proxy` or `HTTPS_PROXY` applies to carriers over TLS, and to an entry with an exit whose
//! WebSocket scheme is HTTPS. `http_proxy` applies to other carriers.
//! `all_proxy` or `ALL_PROXY` applies to carriers for which neither of their variables is set.
//! `HTTP_PROXY` is ignored, because a client of a CGI program could set it by a header. `no_proxy`
//! or `NO_PROXY` lists exits that are dialled directly: `*`, networks, names including their
//! subdomains, and addresses. Names and addresses may have a port. If one exit of `connect` matches,
//! all exits are dialled directly.

use std::net::IpAddr;

use anyhow::Context;
use ipnet::IpNet;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{
    Config, Connect, Proxy, ProxyServer, Security, UNIX_PREFIX, WebSocketScheme,
};

/// Returns the proxy for the carriers of `config`. `variable` reads an environment variable.
///
/// # Errors
/// The value of a variable is invalid. The error names the variable.
pub(super) fn proxy(
    config: &Config,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<ProxyServer>> {
    if config.web_socket.is_none() {
        return Ok(None);
    }
    let mut schemes = config
        .connect
        .iter()
        .filter_map(|exit| exit.web_socket.as_ref());
    let is_https = match config.security {
        Security::None {} | Security::PublicKeys(_) | Security::Ssh(_) => {
            schemes.any(|own| own.scheme == WebSocketScheme::Https)
        }
        Security::Certificates(_) | Security::ServerTls(_) => true,
    };
    let names: &[&str] = match is_https {
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
    };
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let Some((name, value)) = names.iter().find_map(|name| Some((name, set(name)?))) else {
        return Ok(None);
    };
    let without = ["no_proxy", "NO_PROXY"].iter().find_map(set);
    let without = without.as_deref().unwrap_or_default();
    let places = config.rendezvous.iter().map(|place| Some(&*place.address));
    let mut addresses = config.connect.iter().map(Connect::dialled).chain(places);
    if addresses.any(|address| address.is_none_or(|address| is_exempt(without, address))) {
        return Ok(None);
    }
    let value = match value.contains("://") {
        true => value,
        false => format!("http://{value}"),
    };
    let proxy = value
        .parse()
        .with_context(|| format!("{}: the environment's {name}", Code::ConfigInvalid))?;
    Ok(match proxy {
        Proxy::None => None,
        Proxy::Server(server) => Some(server),
    })
}

/// Whether `list` contains `exit` (`host:port`). A Unix socket never uses a proxy.
fn is_exempt(list: &str, exit: &str) -> bool {
    if exit.starts_with(UNIX_PREFIX) {
        return true;
    }
    let Some((host, port)) = exit.rsplit_once(':') else {
        return true;
    };
    let host = bare(host).to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let ip: Option<IpAddr> = host.parse().ok();
    let names = |item: &str| {
        if item == "*" {
            return true;
        }
        if let (Ok(network), Some(ip)) = (item.parse::<IpNet>(), ip) {
            return network.contains(&ip);
        }
        let (name, wanted) = match item.rsplit_once(':') {
            Some((name, wanted)) if !name.contains(':') || name.ends_with(']') => {
                (name, Some(wanted))
            }
            _ => (item, None),
        };
        let name = bare(name).trim_start_matches("*.").trim_start_matches('.');
        let name = name.to_ascii_lowercase();
        let below = host
            .strip_suffix(&*name)
            .is_some_and(|rest| rest.ends_with('.'));
        let same = host == name || (ip.is_none() && below);
        !name.is_empty() && same && wanted.is_none_or(|wanted| wanted == port)
    };
    list.split([',', ' ']).map(str::trim).any(names)
}

fn bare(host: &str) -> &str {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::ConnectWebSocket;

    use super::*;

    fn config(security: &str, web_socket: bool, proxy: &str) -> Config {
        let web_socket = if web_socket {
            "transport: WebSocket\nwebSocket: {path: /}\n"
        } else {
            ""
        };
        let names = match security {
            TLS => "  certificateNames: [d]\n",
            _ => "",
        };
        let yaml = format!(
            "role: Entry\nsecurity: {security}\nconnect:\n- name: far\n  address: far.example.com:443\n{names}{web_socket}{proxy}"
        );
        Config::from_yaml(&yaml).unwrap()
    }

    fn found(config: &Config, set: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let proxy = proxy(config, variable).unwrap();
        proxy.map(|proxy| proxy.to_string())
    }

    const NONE: &str = "{mode: None}";
    const TLS: &str = "{mode: Certificates, certificate: a, key: b, ca: c}";

    #[test]
    fn a_web_socket_goes_through_the_proxy_of_its_scheme_and_nothing_else_does() {
        let all = [
            ("http_proxy", "plain:1"),
            ("HTTP_PROXY", "forged:1"),
            ("HTTPS_PROXY", "http://alice:secret@tls:2"),
            ("ALL_PROXY", "socks5h://all:3"),
        ];
        let plain = config(NONE, true, "");
        assert_eq!(found(&plain, &all).unwrap(), "http://plain:1");
        assert_eq!(found(&plain, &all[1..]).unwrap(), "socks5h://all:3");
        assert_eq!(found(&config(TLS, true, ""), &all).unwrap(), "http://tls:2");
        let mut https = plain.clone();
        https.connect[0].web_socket = Some(ConnectWebSocket {
            host: None,
            scheme: WebSocketScheme::Https,
        });
        assert_eq!(found(&https, &all).unwrap(), "http://tls:2");
        assert_eq!(found(&plain, &[("http_proxy", "")]), None);
        assert_eq!(found(&config(NONE, false, ""), &all), None);
        assert_eq!(found(&config(TLS, false, ""), &all), None);
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_variable_and_not_repeated() {
        let variable =
            |name: &str| (name == "http_proxy").then(|| "ftp://alice:secret@proxy:1".to_owned());
        let error = format!(
            "{:#}",
            proxy(&config(NONE, true, ""), variable).unwrap_err()
        );
        assert!(
            error.contains("http_proxy: not a proxy: expected http://"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn exits_that_no_proxy_names_are_dialled_directly() {
        for (list, exit, expected) in [
            ("", "far.example.com:443", false),
            ("*", "far.example.com:443", true),
            ("example.com", "far.example.com:443", true),
            (".example.com", "far.example.com:443", true),
            ("*.example.com", "far.example.com:443", true),
            ("ample.com", "far.example.com:443", false),
            ("other.com, FAR.example.com", "far.EXAMPLE.com:443", true),
            ("far.example.com:443", "far.example.com:443", true),
            ("far.example.com:80", "far.example.com:443", false),
            ("10.0.0.0/8", "10.1.2.3:443", true),
            ("10.0.0.0/8", "11.1.2.3:443", false),
            ("0.0.0.0/0", "far.example.com:443", false),
            ("10.1.2.3", "10.1.2.3:443", true),
            ("2.3", "10.1.2.3:443", false),
            ("::1", "[::1]:443", true),
            ("[::1]:443", "[::1]:443", true),
            ("fd00::/8", "[fd00::1]:443", true),
            ("", "unix:/run/exit.sock", true),
            ("", "unix:/run/exit:1.sock", true),
        ] {
            assert_eq!(is_exempt(list, exit), expected, "{list:?} {exit}");
        }
    }
}

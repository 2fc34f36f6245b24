//! The address of carriers, on the command line.

use muxtunnel_gateway_config::{Security, WebSocket};

/// Converts `HOST:PORT` or `ws://HOST:PORT/PATH` to the fields of a configuration.
///
/// # Errors
/// `ws://` if TLS secures carriers, or `wss://` if TLS does not.
pub(super) fn parse(
    text: &str,
    security: &Security,
) -> Result<(String, Option<WebSocket>), String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Ok((text.to_owned(), None));
    };
    let (modes, expected) = match security {
        Security::MutualTls(_) | Security::ServerTls(_) => ("mtls or tls", "wss"),
        Security::None {} | Security::PublicKeys(_) | Security::Ssh(_) => ("none or keys", "ws"),
    };
    if scheme != expected {
        return Err(format!(
            "{text}: --security {modes} requires {expected}://HOST:PORT/PATH or HOST:PORT"
        ));
    }
    let end = rest.find('/').unwrap_or(rest.len());
    let (address, path) = rest.split_at(end);
    if address == "unix:" {
        return Err(format!(
            "{text}: a ws:// or wss:// address cannot name a Unix socket; set webSocket in a configuration file for muxgate run"
        ));
    }
    let web_socket = WebSocket {
        path: if path.is_empty() { "/" } else { path }.to_owned(),
        host: (!address.contains(',')).then(|| address.to_owned()),
        origins: Vec::new(),
    };
    Ok((address.to_owned(), Some(web_socket)))
}

/// Works as [`parse`], for an optional address.
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn parse_option(
    text: Option<String>,
    security: &Security,
) -> Result<(Option<String>, Option<WebSocket>), String> {
    match text.map(|text| parse(&text, security)).transpose()? {
        Some((address, web_socket)) => Ok((Some(address), web_socket)),
        None => Ok((None, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_and_a_path_make_carriers_web_sockets() {
        let none = Security::None {};
        assert_eq!(parse("a:1", &none).unwrap(), ("a:1".to_owned(), None));
        let (address, web_socket) = parse("ws://a:1/b/c", &none).unwrap();
        let web_socket = web_socket.unwrap();
        assert_eq!(
            (address.as_str(), web_socket.path.as_str()),
            ("a:1", "/b/c")
        );
        assert_eq!(web_socket.host.as_deref(), Some("a:1"));
        let (address, web_socket) = parse("ws://a:1,b:2", &none).unwrap();
        let web_socket = web_socket.unwrap();
        assert_eq!(
            (address.as_str(), web_socket.path.as_str()),
            ("a:1,b:2", "/")
        );
        assert_eq!(web_socket.host, None);
        for wrong in ["wss://a:1", "http://a:1"] {
            assert!(parse(wrong, &none).unwrap_err().contains("requires ws://"));
        }
    }
}

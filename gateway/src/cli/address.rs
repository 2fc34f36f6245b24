//! The addresses of carriers, on the command line.

use muxtunnel_gateway_config::{
    Connect, ConnectWebSocket, GatewayKey, Role, Security, WebSocket, WebSocketScheme,
};

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
        Security::Certificates(_) | Security::ServerTls(_) => ("certificates or tls", "wss"),
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
        origins: Vec::new(),
    };
    Ok((address.to_owned(), Some(web_socket)))
}

/// The address of an exit behind a proxy that ends TLS, as `ws://`. With certificates or tls, TLS is
/// that of the carrier itself.
fn https_address(text: &str, security: &Security) -> Option<String> {
    let is_outside = matches!(security, Security::None {} | Security::PublicKeys(_));
    let rest = text.strip_prefix("wss://").filter(|_| is_outside)?;
    Some(format!("ws://{rest}"))
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

/// The exits of `--connect`. `peers` are the identities of `--peer`, for exits without identities of
/// their own.
///
/// # Errors
/// An option or an identity is not valid, or the exits differ in the use of WebSocket.
pub(super) fn exits(
    texts: &[String],
    peers: &[String],
    security: &Security,
) -> Result<(Vec<Connect>, Option<WebSocket>), String> {
    let (mut exits, mut web_sockets) = (Vec::new(), Vec::new());
    for (index, text) in texts.iter().enumerate() {
        let (address, options) = text.split_once(',').unwrap_or((text, ""));
        let https = https_address(address, security);
        let (address, web_socket) = parse(https.as_deref().unwrap_or(address), security)?;
        let mut exit = Connect {
            web_socket: https.map(|_| ConnectWebSocket {
                host: None,
                scheme: WebSocketScheme::Https,
            }),
            name: match texts.len() {
                1 => "exit".to_owned(),
                _ => format!("exit-{}", index + 1),
            },
            address: Some(address),
            ..Connect::default()
        };
        let mut own = Vec::new();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("name", name)) => name.clone_into(&mut exit.name),
                Some(("order", order)) => {
                    let problem = |_| format!("--connect {text}: order={order} is not 0 to 100");
                    exit.order = order.parse().map_err(problem)?;
                }
                Some(("peer", peer)) => own.push(peer.to_owned()),
                _ => {
                    return Err(format!(
                        "--connect {text}: {option} is not name=NAME, order=N or peer=KEY|NAME. Repeat --connect for \
                         each exit"
                    ));
                }
            }
        }
        identify(
            &mut exit,
            if own.is_empty() { peers } else { &own },
            security,
        )?;
        exits.push(exit);
        web_sockets.push(web_socket);
    }
    let first = web_sockets.first().cloned().flatten();
    match web_sockets.iter().all(|other| *other == first) {
        true => Ok((exits, first)),
        false => Err("--connect: all exits need the same scheme and path".to_owned()),
    }
}

/// Sets the identities that `exit` may prove.
///
/// # Errors
/// An identity is missing or not valid, or the mode has no identities.
pub(super) fn identify(
    exit: &mut Connect,
    peers: &[String],
    security: &Security,
) -> Result<(), String> {
    match security {
        Security::PublicKeys(_) if peers.is_empty() => Err(format!(
            "--key requires --peer {}1..., the public key of the exit",
            Role::Exit.prefix()
        )),
        Security::PublicKeys(_) => {
            for peer in peers {
                let key = GatewayKey::of_role(peer, Role::Exit);
                exit.public_keys
                    .push(key.map_err(|error| format!("--peer: {error}"))?);
            }
            Ok(())
        }
        Security::Certificates(_) => {
            exit.certificate_names = peers.to_vec();
            Ok(())
        }
        Security::None {} | Security::ServerTls(_) | Security::Ssh(_) if peers.is_empty() => Ok(()),
        Security::None {} | Security::ServerTls(_) | Security::Ssh(_) => {
            Err("--peer does not belong to this mode of --security".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::{PublicKeys, key_text};

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
        for wrong in ["wss://a:1", "http://a:1"] {
            assert!(parse(wrong, &none).unwrap_err().contains("requires ws://"));
        }
    }

    #[test]
    fn wss_with_keys_is_tls_to_a_proxy_outside_of_the_carrier() {
        let exit = |text: &str, security: &Security| {
            let (mut exits, web_socket) = exits(&[text.to_owned()], &[], security).unwrap();
            (exits.remove(0), web_socket.map(|own| own.path))
        };
        let none = Security::None {};
        let (https, path) = exit("wss://far:443/a", &none);
        assert_eq!(
            (&*https.address.unwrap(), path.unwrap()),
            ("far:443", "/a".to_owned())
        );
        assert_eq!(https.web_socket.unwrap().scheme, WebSocketScheme::Https);
        assert_eq!(exit("ws://far:80/a", &none).0.web_socket, None);
    }

    #[test]
    fn each_exit_has_its_name_its_order_and_its_identities() {
        let keys = Security::PublicKeys(PublicKeys {
            private_key_files: vec!["/k".into()],
            peers: Vec::new(),
            peers_file: None,
            places: Vec::new(),
        });
        let [one, two] = [1, 2].map(|seed| key_text(Role::Exit, &[seed * 3; 32]));
        let texts = [
            "ws://a:1/p".to_owned(),
            format!("ws://b:2/p,name=b,order=7,peer={two}"),
        ];
        let (found, web_socket) = exits(&texts, std::slice::from_ref(&one), &keys).unwrap();
        assert_eq!(web_socket.unwrap().path, "/p");
        let shown = |exit: &Connect| {
            let keys: Vec<_> = exit.public_keys.iter().map(ToString::to_string).collect();
            (exit.name.clone(), exit.order, exit.address.clone(), keys)
        };
        assert_eq!(
            shown(&found[0]),
            ("exit-1".to_owned(), 0, Some("a:1".to_owned()), vec![one])
        );
        assert_eq!(
            shown(&found[1]),
            ("b".to_owned(), 7, Some("b:2".to_owned()), vec![two])
        );
        let none = Security::None {};
        let wrong = |texts: &[&str], peers: &[&str]| {
            let [texts, peers] =
                [texts, peers].map(|list| list.iter().map(|text| (*text).to_owned()).collect());
            let (texts, peers): (Vec<String>, Vec<String>) = (texts, peers);
            exits(&texts, &peers, &none).unwrap_err()
        };
        assert!(wrong(&["a:1,b:2"], &[]).contains("Repeat --connect"));
        assert!(wrong(&["a:1,order=x"], &[]).contains("order=x"));
        assert!(wrong(&["ws://a:1", "b:2"], &[]).contains("same scheme and path"));
        assert!(wrong(&["a:1"], &["x"]).contains("--peer does not belong"));
        let missing = exits(&["a:1".to_owned()], &[], &keys).unwrap_err();
        assert!(missing.contains("--peer mtx1..."), "{missing}");
    }
}

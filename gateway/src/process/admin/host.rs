//! Checks the host in the requests to the admin port.
//!
//! A web page can let its own name resolve to the address of a gateway (DNS rebinding). The browser
//! then sends the page's requests to the gateway, and the page reads the answers. Such a request
//! names the page's host, so the port accepts only hosts that no page can have: IP addresses,
//! `localhost`, and the names in the configuration.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The further names in the configuration.
pub(in crate::process) type AdminHosts = Arc<[String]>;

/// Answers requests for other hosts.
pub(super) async fn check(
    State(names): State<AdminHosts>,
    request: Request,
    next: Next,
) -> Response {
    match judge(&names, &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn judge(names: &[String], request: &Request) -> Result<(), (StatusCode, &'static str)> {
    const INVALID: (StatusCode, &str) = (
        StatusCode::BAD_REQUEST,
        "the request does not have exactly one valid Host field\n",
    );
    let mut fields = request.headers().get_all(header::HOST).iter();
    let host = match (request.uri().authority(), fields.next(), fields.next()) {
        (_, Some(_), Some(_)) => return Err(INVALID),
        // The host of an absolute URL precedes the field (RFC 9112, section 3.2.2).
        (Some(authority), ..) => authority.as_str(),
        (None, Some(field), None) => field.to_str().map_err(|_| INVALID)?,
        // Browsers do not send HTTP/1.0.
        (None, None, _) if request.version() == Version::HTTP_10 => return Ok(()),
        (None, None, _) => return Err(INVALID),
    };
    match is_accepted(names, host) {
        true => Ok(()),
        false => Err((
            StatusCode::MISDIRECTED_REQUEST,
            "the admin port does not serve this host: use an IP address or localhost, or add the name to adminHosts \
             (flag --admin-host)\n",
        )),
    }
}

/// Whether the port serves `host`, which may have a port number.
fn is_accepted(names: &[String], host: &str) -> bool {
    let is_port = |rest: &str| {
        let port = rest.strip_prefix(':');
        rest.is_empty() || port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        // A link-local address may have a zone.
        let address = address.split('%').next().unwrap_or_default();
        return address.parse::<Ipv6Addr>().is_ok() && is_port(rest);
    }
    let end = host.find(':').unwrap_or(host.len());
    let (name, rest) = host.split_at(end);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is = |other: &str| name.eq_ignore_ascii_case(other.strip_suffix('.').unwrap_or(other));
    let is_known =
        name.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|other| is(other));
    is_known && is_port(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_a_web_page_can_have_is_not_served() {
        let names = ["gate.example.com".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:64001",
            "10.1.2.3:64001",
            "[::1]",
            "[fd00::7]:64001",
            "[fe80::1%2]:64001",
            "localhost",
            "LocalHost:64001",
            "localhost.",
            "gate.example.com",
            "Gate.Example.com.:64001",
        ] {
            assert!(is_accepted(&names, host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:64001",
            "127.0.0.1.evil.example",
            "127.0.0.1.nip.io:64001",
            "localhost.evil.example",
            "xlocalhost",
            "a.localhost",
            "gate.example.com.evil.example",
            "evil-gate.example.com",
            "gate",
            "",
            ":64001",
            "[evil]",
            "[::1",
            "[::1]evil",
            "::1",
            "127.0.0.1:x",
            "127.0.0.1:64001:1",
            "2130706433",
            "0x7f.1",
            "127.1",
            "localhost..",
        ] {
            assert!(!is_accepted(&names, host), "{host}");
        }
        assert!(!is_accepted(&[], "gate.example.com"));
    }
}

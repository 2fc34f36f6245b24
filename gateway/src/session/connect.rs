//! CONNECT requests, common to all versions of HTTP: the target as `:authority`, and the answer
//! ([`answer`]).

pub(crate) mod answer;

use http::uri::Authority;
use http::{Method, Request, Uri};
use muxtunnel_proto::{Reason, Refusal};

/// Builds a CONNECT request to `target` (`tcp://host:port`).
///
/// # Errors
/// `target` has no authority.
pub(crate) fn connect_to(target: &str) -> Result<Request<()>, Refusal> {
    let refusal = |text: String| Refusal::new(Reason::AddressType, text);
    let Some(address) = target.strip_prefix("tcp://") else {
        return Err(refusal(format!(
            "{target:?} is not HOST:PORT, which an HTTP CONNECT requires"
        )));
    };
    let split = address.rsplit_once(':');
    let Some((host, port)) = split
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)))
    else {
        return Err(refusal(format!("{target:?} is not HOST:PORT")));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let authority = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let uri = Uri::try_from(authority).map_err(|error| refusal(format!("{target:?}: {error}")))?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = uri;
    Ok(request)
}

/// Converts an authority to a target.
pub(crate) fn target_of(authority: &Authority) -> Option<String> {
    let port = authority.port_u16()?;
    let host = authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_authority_of_its_request() {
        let authority = |target: &str| {
            let request = connect_to(target).unwrap();
            assert_eq!(request.method(), Method::CONNECT);
            request.uri().to_string()
        };
        assert_eq!(authority("tcp://web.example.com:80"), "web.example.com:80");
        assert_eq!(authority("tcp://fd00::1:80"), "[fd00::1]:80");
        assert_eq!(authority("tcp://[fd00::1]:80"), "[fd00::1]:80");
        for odd in [
            "unix:/run/a",
            "tcp://",
            "tcp://web",
            "tcp://a b:80",
            "tcp://:80",
        ] {
            let refusal = connect_to(odd).unwrap_err();
            assert_eq!(refusal.reason, Reason::AddressType, "{odd}");
        }
    }
}

//! Requests and answers as field sections (RFC 9114, sections 4.3 and 4.4).

use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::response::Parts;
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};

use super::frame;
use super::qpack::{self, Field};
use crate::session::connect::target_of;

/// A malformed message (section 4.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// A request for a tunnel to this target.
    Tunnel(String),
    /// A request that is answered only with this status.
    Nothing(StatusCode),
}

/// Reads the fields of a request.
///
/// # Errors
/// The request is malformed.
pub(super) fn request(fields: Vec<Field>) -> Result<Asks, Malformed> {
    let (pseudo, _) = read(
        fields,
        &[":method", ":scheme", ":authority", ":path", ":protocol"],
    )?;
    let [method, scheme, authority, path, protocol] = pseudo;
    let method = Method::from_bytes(&method.ok_or(Malformed)?).map_err(|_| Malformed)?;
    if method != Method::CONNECT {
        return Ok(Asks::Nothing(StatusCode::METHOD_NOT_ALLOWED));
    }
    if protocol.is_some() {
        // An extended CONNECT (RFC 9220), which this side's settings do not allow.
        return Ok(Asks::Nothing(StatusCode::METHOD_NOT_ALLOWED));
    }
    if scheme.is_some() || path.is_some() {
        return Err(Malformed);
    }
    let authority = Authority::try_from(&authority.ok_or(Malformed)?[..]);
    let target = authority.ok().as_ref().and_then(target_of);
    Ok(target.map_or(Asks::Nothing(StatusCode::BAD_REQUEST), Asks::Tunnel))
}

/// Reads the fields of an answer.
///
/// # Errors
/// The answer is malformed.
pub(super) fn answer(fields: Vec<Field>) -> Result<Parts, Malformed> {
    let ([status], headers) = read(fields, &[":status"])?;
    let status = StatusCode::from_bytes(&status.ok_or(Malformed)?).map_err(|_| Malformed)?;
    let mut answer = Response::new(());
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    Ok(answer.into_parts().0)
}

type Value = Option<Vec<u8>>;

/// Reads the values of the pseudo-header fields `known`, and the fields after them. Any other
/// pseudo-header field makes the message malformed.
fn read<const N: usize>(
    fields: Vec<Field>,
    known: &[&str; N],
) -> Result<([Value; N], HeaderMap), Malformed> {
    let mut pseudo = [const { None }; N];
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        if name.starts_with(b":") {
            let place = known.iter().position(|known| known.as_bytes() == &*name);
            let place = place
                .and_then(|place| pseudo.get_mut(place))
                .ok_or(Malformed)?;
            if place.is_some() || !headers.is_empty() {
                return Err(Malformed);
            }
            *place = Some(value.into_owned());
            continue;
        }
        // A name with upper-case letters is malformed (section 4.2).
        let name = HeaderName::from_lowercase(&name).map_err(|_| Malformed)?;
        let value = HeaderValue::from_bytes(&value).map_err(|_| Malformed)?;
        if is_of_a_connection(&name, &value) {
            return Err(Malformed);
        }
        headers.try_append(name, value).map_err(|_| Malformed)?;
    }
    Ok((pseudo, headers))
}

/// Whether a field is specific to an HTTP/1.1 connection (section 4.2).
fn is_of_a_connection(name: &HeaderName, value: &HeaderValue) -> bool {
    [CONNECTION, TRANSFER_ENCODING, UPGRADE].contains(name)
        || ["keep-alive", "proxy-connection"].contains(&name.as_str())
        || (*name == TE && value != "trailers")
}

/// Encodes the fields of a CONNECT as a frame. Also returns their size as counted by RFC 9114
/// (section 4.2.2).
pub(super) fn push_request(request: &Request<()>) -> (Vec<u8>, usize) {
    let authority = request.uri().authority().map_or("", Authority::as_str);
    let fields = [
        (":method", request.method().as_str().as_bytes()),
        (":authority", authority.as_bytes()),
    ];
    (headers(fields), qpack::size(fields))
}

/// Encodes the fields of an answer as a frame.
pub(super) fn push_answer(answer: &Response<()>) -> Vec<u8> {
    let status = answer.status();
    let status = [(":status", status.as_str().as_bytes())];
    let others = answer.headers().iter();
    let others = others.map(|(name, value)| (name.as_str(), value.as_bytes()));
    headers(status.into_iter().chain(others))
}

fn headers<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, frame::HEADERS, &qpack::encode(fields));
    bytes
}

#[cfg(test)]
mod tests {
    use muxtunnel_proto::{Reason, Refusal};

    use super::*;
    use crate::session::connect::{answer as answers, connect_to};

    /// The fields in a HEADERS frame.
    fn fields(bytes: &[u8]) -> Vec<Field> {
        let (kind, rest) = frame::integer(bytes).unwrap();
        let (length, section) = frame::integer(rest).unwrap();
        assert_eq!((kind, length), (frame::HEADERS, section.len() as u64));
        qpack::decode(section).unwrap()
    }

    fn asks(fields: &[(&'static str, &'static str)]) -> Result<Asks, Malformed> {
        let field = |(name, value): &(&'static str, &'static str)| {
            (name.as_bytes().into(), value.as_bytes().into())
        };
        request(fields.iter().map(field).collect())
    }

    #[test]
    fn a_request_for_a_target_asks_for_it() {
        for target in ["tcp://web.example.com:80", "tcp://fd00::1:80"] {
            let (bytes, size) = push_request(&connect_to(target).unwrap());
            assert!(size > bytes.len());
            let asked = request(fields(&bytes)).unwrap();
            assert_eq!(asked, Asks::Tunnel(target.to_owned()));
        }
    }

    #[test]
    fn an_answer_arrives_with_its_words() {
        let refusal = Refusal::new(Reason::ConnectionRefused, "web:80 does not answer");
        let head = answer(fields(&push_answer(&answers::refused(&refusal)))).unwrap();
        assert_eq!(answers::read(&head), Err(refusal));
        let head = answer(fields(&push_answer(&answers::granted("10.0.0.1:80")))).unwrap();
        assert_eq!(answers::read(&head), Ok(()));
        assert_eq!(answers::address(&head), "10.0.0.1:80");
    }

    #[test]
    fn what_is_no_connect_to_a_target_is_answered_by_a_status() {
        let connect = (":method", "CONNECT");
        for (fields, status) in [
            (
                &[
                    (":method", "GET"),
                    (":scheme", "https"),
                    (":authority", "a"),
                    (":path", "/"),
                ][..],
                405,
            ),
            (
                &[
                    connect,
                    (":protocol", "websocket"),
                    (":scheme", "https"),
                    (":path", "/"),
                    (":authority", "a:1"),
                ],
                405,
            ),
            (&[connect, (":authority", "no-port")], 400),
            (&[connect, (":authority", "a b:1")], 400),
            (&[connect, (":authority", "")], 400),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(asks(fields), Ok(Asks::Nothing(status)), "{fields:?}");
        }
    }

    #[test]
    fn malformed_requests_are_none() {
        let (connect, authority) = ((":method", "CONNECT"), (":authority", "a:1"));
        for fields in [
            &[][..],
            &[authority],
            &[connect],
            &[connect, authority, (":scheme", "https")],
            &[connect, authority, (":path", "/")],
            &[connect, authority, authority],
            &[connect, authority, (":status", "200")],
            &[connect, ("accept", "*/*"), authority],
            &[connect, authority, ("Accept", "*/*")],
            &[connect, authority, ("accept", "a\r\nb")],
            &[connect, authority, ("", "a")],
            &[connect, authority, ("connection", "close")],
            &[connect, authority, ("te", "gzip")],
            &[(":method", "a b"), authority],
        ] {
            assert_eq!(asks(fields), Err(Malformed), "{fields:?}");
        }
        let good = [connect, authority, ("te", "trailers"), ("user-agent", "a")];
        assert_eq!(asks(&good), Ok(Asks::Tunnel("tcp://a:1".to_owned())));
    }
}

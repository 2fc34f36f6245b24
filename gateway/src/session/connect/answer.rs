//! Answers to a CONNECT: a status and a Proxy-Status header (RFC 9209). The header contains the
//! class and description of a refusal, or the target's address.

use http::header::HeaderName;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use muxtunnel_proto::{Reason, Refusal};
use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser, StringRef, TokenRef};

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// This gateway's name in Proxy-Status.
const SELF: &TokenRef = TokenRef::constant("muxgate");
const ERROR: &KeyRef = KeyRef::constant("error");
const DETAILS: &KeyRef = KeyRef::constant("details");
const NEXT_HOP: &KeyRef = KeyRef::constant("next-hop");
/// Maximum length of the description of a refusal, in bytes; the rest is cut off.
const DETAILS_BYTES_MAX: usize = 256;

/// Each class of refusal with its status and its proxy error type (section 2.3). If a class has
/// several rows, this gateway sends the first row and accepts all rows.
const CLASSES: [(Reason, StatusCode, &TokenRef); 11] = [
    (
        Reason::General,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("proxy_internal_error"),
    ),
    (
        Reason::NotAllowed,
        StatusCode::FORBIDDEN,
        TokenRef::constant("http_request_denied"),
    ),
    (
        Reason::NotAllowed,
        StatusCode::FORBIDDEN,
        TokenRef::constant("destination_ip_prohibited"),
    ),
    (
        Reason::NetworkUnreachable,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("destination_ip_unroutable"),
    ),
    (
        Reason::HostUnreachable,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("destination_unavailable"),
    ),
    (
        Reason::HostUnreachable,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("destination_not_found"),
    ),
    (
        Reason::HostUnreachable,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("dns_error"),
    ),
    (
        Reason::ConnectionRefused,
        StatusCode::BAD_GATEWAY,
        TokenRef::constant("connection_refused"),
    ),
    (
        Reason::TimedOut,
        StatusCode::GATEWAY_TIMEOUT,
        TokenRef::constant("connection_timeout"),
    ),
    (
        Reason::TimedOut,
        StatusCode::GATEWAY_TIMEOUT,
        TokenRef::constant("dns_timeout"),
    ),
    (
        Reason::AddressType,
        StatusCode::BAD_REQUEST,
        TokenRef::constant("http_request_error"),
    ),
];

pub(crate) fn granted(address: &str) -> Response<()> {
    let mut list = ListSerializer::new();
    let mut status = list.bare_item(SELF);
    if let Ok(address) = StringRef::from_str(address) {
        status = status.parameter(NEXT_HOP, address);
    }
    let _ = status;
    with(StatusCode::OK, list.finish())
}

pub(crate) fn refused(refusal: &Refusal) -> Response<()> {
    let class = CLASSES
        .iter()
        .find(|(reason, ..)| *reason == refusal.reason);
    let (_, status, error) = class.unwrap_or(&CLASSES[0]);
    let details: String = refusal
        .description
        .chars()
        .map(|character| match character {
            ' '..='~' => character,
            _ => '?',
        })
        .take(DETAILS_BYTES_MAX)
        .collect();
    let mut list = ListSerializer::new();
    let item = list.bare_item(SELF).parameter(ERROR, *error);
    if let Ok(details) = StringRef::from_str(&details) {
        let _ = item.parameter(DETAILS, details);
    }
    with(*status, list.finish())
}

/// An answer with only a status.
pub(crate) fn status(status: StatusCode) -> Response<()> {
    with(status, None)
}

fn with(status: StatusCode, proxy_status: Option<String>) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    let value = proxy_status.and_then(|text| HeaderValue::try_from(text).ok());
    if let Some(value) = value {
        response.headers_mut().insert(PROXY_STATUS, value);
    }
    response
}

/// Reads the peer's answer to a CONNECT.
///
/// # Errors
/// The peer refused the CONNECT.
pub(crate) fn read(head: &Parts) -> Result<(), Refusal> {
    if head.status.is_success() {
        return Ok(());
    }
    let said = last_hop(head);
    let error = said.as_ref().and_then(|item| match item.params.get(ERROR) {
        Some(BareItem::Token(error)) => Some(error.as_str()),
        _ => None,
    });
    let class = CLASSES
        .iter()
        .find(|(_, _, token)| error == Some(token.as_str()))
        .map(|(reason, ..)| *reason);
    let details = said
        .as_ref()
        .and_then(|item| match item.params.get(DETAILS) {
            Some(BareItem::String(details)) => Some(details.as_str()),
            _ => None,
        });
    let description = match details {
        Some(details) => details.to_owned(),
        None => format!("the peer answered the request with status {}", head.status),
    };
    Err(Refusal::new(
        class.unwrap_or(of_status(head.status)),
        description,
    ))
}

/// The address that the peer reached, if the peer reports it; otherwise empty.
pub(crate) fn address(head: &Parts) -> String {
    let said = last_hop(head);
    let hop = said.as_ref().and_then(|item| item.params.get(NEXT_HOP));
    match hop {
        Some(BareItem::String(address)) => address.as_str().to_owned(),
        _ => String::new(),
    }
}

/// The first member of Proxy-Status: the proxy nearest to the target (RFC 9209, section 2).
fn last_hop(head: &Parts) -> Option<Item> {
    let value = head.headers.get(PROXY_STATUS)?;
    let list: List = Parser::new(value.as_bytes()).parse().ok()?;
    match list.into_iter().next() {
        Some(ListEntry::Item(item)) => Some(item),
        Some(ListEntry::InnerList(_)) | None => None,
    }
}

/// The class of a refusal without Proxy-Status.
fn of_status(status: StatusCode) -> Reason {
    match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Reason::NotAllowed,
        StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => Reason::HostUnreachable,
        StatusCode::GATEWAY_TIMEOUT => Reason::TimedOut,
        _ => Reason::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(response: Response<()>) -> Result<(), Refusal> {
        read(&response.into_parts().0)
    }

    #[test]
    fn a_refusal_arrives_with_its_class_and_its_words() {
        for reason in [
            Reason::General,
            Reason::NotAllowed,
            Reason::NetworkUnreachable,
            Reason::HostUnreachable,
            Reason::ConnectionRefused,
            Reason::TimedOut,
            Reason::AddressType,
        ] {
            let refusal = Refusal::new(reason, "web:80 does not answer");
            assert_eq!(heard(refused(&refusal)), Err(refusal), "{reason:?}");
        }
        let other = Refusal::new(Reason::Other(77), "\u{e4}\n\"quoted\"");
        let arrived = heard(refused(&other)).unwrap_err();
        assert_eq!(arrived, Refusal::new(Reason::General, "??\"quoted\""));
    }

    #[test]
    fn a_status_alone_has_a_class() {
        for (code, reason) in [
            (403, Reason::NotAllowed),
            (407, Reason::NotAllowed),
            (503, Reason::HostUnreachable),
            (504, Reason::TimedOut),
            (500, Reason::General),
        ] {
            let code = StatusCode::from_u16(code).unwrap();
            let refusal = heard(status(code)).unwrap_err();
            assert_eq!(refusal.reason, reason, "{code}");
            assert!(refusal.description.contains(code.as_str()));
        }
        assert_eq!(heard(status(StatusCode::NO_CONTENT)), Ok(()));
    }

    #[test]
    fn the_address_that_was_reached_arrives() {
        let head = granted("[fd00::1]:80").into_parts().0;
        assert_eq!(
            (read(&head), address(&head)),
            (Ok(()), "[fd00::1]:80".to_owned())
        );
        assert_eq!(address(&status(StatusCode::OK).into_parts().0), "");
    }

    #[test]
    fn what_is_no_structured_field_is_passed_over() {
        let mut response = status(StatusCode::BAD_GATEWAY);
        let value = HeaderValue::from_static("muxgate; error=\"unfinished");
        response.headers_mut().insert(PROXY_STATUS, value);
        assert_eq!(heard(response).unwrap_err().reason, Reason::General);
    }
}

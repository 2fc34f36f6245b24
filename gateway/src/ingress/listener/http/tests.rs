//! Requests of HTTP proxy clients: what the target gets, and what is refused, by the requirements
//! of docs/proxy-conformance.md.

use super::super::oracle::{Alice, End, Outcome, converse};
use super::super::tests::{http, status, whole};
use super::forwarded::{BodyFraming, Forwarded};
use super::*;

fn hear(text: &str) -> Outcome {
    whole(http(), None, text.as_bytes())
}

/// The request that the gateway forwards, its target, and the bytes after the request.
fn forwarded(text: &str) -> (String, Forwarded, Vec<u8>) {
    match hear(text).end {
        End::Asks { request, rest } => {
            assert_eq!(request.answer, Answer::Http);
            (request.url.to_string(), request.forwarded.unwrap(), rest)
        }
        end => panic!("{text}: {end:?}"),
    }
}

/// The head that the target gets for a request with these fields, which end with CRLF.
fn head_of(line: &str, fields: &str) -> String {
    let (_, forwarded, _) = forwarded(&format!("{line}\r\nHost: x\r\n{fields}\r\n"));
    String::from_utf8(forwarded.head).unwrap()
}

#[test]
fn a_request_for_an_absolute_url_goes_on_in_origin_form_without_what_is_the_proxys() {
    let text = "POST http://web.shop:8080/buy?n=1#top HTTP/1.1\r\nHost: other\r\nAccept: */*\r\n\
         Proxy-Connection: keep-alive\r\nproxy-authorization: Basic eDp5\r\nConnection: X-Mine, Content-Length\r\n\
         X-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\
         Proxy-Status: kept\r\nVia: 1.0 first\r\nUnknown: kept\r\n\r\nbody";
    let head = "POST /buy?n=1 HTTP/1.1\r\nHost: web.shop:8080\r\nAccept: */*\r\n\
         Proxy-Status: kept\r\nVia: 1.0 first\r\nUnknown: kept\r\nContent-Length: 4\r\nVia: 1.1 muxgate\r\n\r\n";
    let (url, request, rest) = forwarded(text);
    assert_eq!((&*url, &*rest), ("tcp://web.shop:8080", &b"body"[..]));
    assert_eq!(String::from_utf8(request.head).unwrap(), head);
    assert_eq!(request.body, BodyFraming::Length(4));
    assert!(request.persists && request.hears_informational && !request.expects);
    for (line, url, origin) in [
        (
            "GET http://web HTTP/1.1",
            "tcp://web:80",
            "GET / HTTP/1.1\r\nHost: web",
        ),
        (
            "GET HTTP://web?q HTTP/1.1",
            "tcp://web:80",
            "GET /?q HTTP/1.1\r\nHost: web",
        ),
        (
            "OPTIONS http://web HTTP/1.1",
            "tcp://web:80",
            "OPTIONS * HTTP/1.1\r\nHost: web",
        ),
        (
            "OPTIONS http://web/ HTTP/1.1",
            "tcp://web:80",
            "OPTIONS / HTTP/1.1\r\nHost: web",
        ),
        (
            "GET http://[::1]:81/ HTTP/1.1",
            "tcp://::1:81",
            "GET / HTTP/1.1\r\nHost: [::1]:81",
        ),
    ] {
        let (to, request, _) = forwarded(&format!("{line}\r\nHost: other\r\n\r\n"));
        let head = String::from_utf8(request.head).unwrap();
        assert_eq!(to, url, "{line}");
        assert_eq!(
            head,
            format!("{origin}\r\nVia: 1.1 muxgate\r\n\r\n"),
            "{line}"
        );
    }
}

#[test]
fn what_a_recipient_tolerates_or_repairs_is_a_request() {
    for text in [
        // Empty lines before the request line (RFC 9112, section 2.2), also with a bare LF.
        "\r\nGET http://web/ HTTP/1.1\r\nHost: web\r\n\r\n",
        "\n\r\n\r\nGET http://web/ HTTP/1.1\r\nHost: web\r\n\r\n",
        // A bare LF ends a line (2.2).
        "GET http://web/ HTTP/1.1\nHost: web\n\n",
        // Whitespace between the elements of a request line (3).
        "GET  http://web/   HTTP/1.1\r\nHost: web\r\n\r\n",
        // Whitespace around a value (5), and none.
        "GET http://web/ HTTP/1.1\r\nHost: \t web \t\r\n\r\n",
        "GET http://web/ HTTP/1.1\r\nHost:web\r\n\r\n",
        // A later minor version (RFC 9110, section 2.5).
        "GET http://web/ HTTP/1.9\r\nHost: web\r\n\r\n",
        // A Host without a value, and one that differs from the URL (RFC 9112, section 3.2.2).
        "GET http://web/ HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://web/ HTTP/1.1\r\nHost: other:81\r\n\r\n",
    ] {
        let (url, request, rest) = forwarded(text);
        let head = String::from_utf8(request.head).unwrap();
        assert_eq!(url, "tcp://web:80", "{text:?}");
        assert_eq!(
            head, "GET / HTTP/1.1\r\nHost: web\r\nVia: 1.1 muxgate\r\n\r\n",
            "{text:?}"
        );
        assert!(rest.is_empty());
        let pieces = converse(http(), None, text.as_bytes().chunks(1));
        assert_eq!(pieces, hear(text));
    }
    // Equal lengths count once (RFC 9110, section 8.6), and empty elements of a list not at all.
    for (fields, body) in [
        (
            "Content-Length: 4\r\nContent-Length: 4\r\n",
            BodyFraming::Length(4),
        ),
        ("Content-Length: 4, 4\r\n", BodyFraming::Length(4)),
        ("Content-Length: 0004\r\n", BodyFraming::Length(4)),
        ("Transfer-Encoding: , Chunked,\r\n", BodyFraming::Chunked),
    ] {
        let text = format!("PUT http://web/ HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        let (_, request, _) = forwarded(&text);
        assert_eq!(request.body, body, "{fields}");
        let head = String::from_utf8(request.head).unwrap();
        let field = match body {
            BodyFraming::Chunked => "\r\nTransfer-Encoding: chunked\r\n",
            _ => "\r\nContent-Length: 4\r\n",
        };
        assert_eq!(head.matches(field).count(), 1, "{head}");
    }
}

#[test]
fn what_is_no_request_to_a_proxy_is_answered_in_words() {
    let many = "a: b\r\n".repeat(FIELDS_MAX);
    let url = format!("GET http://web/{}", "x".repeat(HEAD_BYTES_MAX));
    let field = format!(
        "GET http://web/ HTTP/1.1\r\nHost: x\r\na: {}",
        "x".repeat(HEAD_BYTES_MAX)
    );
    let with = |fields: &str| format!("GET http://web/ HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
    for (text, expected) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("GET https://web/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("GET http:///path HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        (
            "GET http://user:pass@web/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "400",
        ),
        ("GET http://web/ HTTP/2.0\r\nHost: x\r\n\r\n", "505"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
        ("GET http://web/ HTTP/1.x\r\nHost: x\r\n\r\n", "400"),
        ("GET http://web/ http/1.1\r\nHost: x\r\n\r\n", "400"),
        ("GET http://web/\r\nHost: x\r\n\r\n", "400"),
        ("\x16\x03\x01", "400"),
        (" GET http://web/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("\r\r\nGET http://web/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        // One valid Host (RFC 9112, section 3.2).
        ("GET http://web/ HTTP/1.1\r\n\r\n", "400"),
        (
            "CONNECT web:80 HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
            "400",
        ),
        ("CONNECT web:80 HTTP/1.1\r\nHost: a b\r\n\r\n", "400"),
        (&with("Host: x"), "400"),
        (&with("Host: y"), "400"),
        (
            "GET http://web/ HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
            "400",
        ),
        ("GET http://web/ HTTP/1.1\r\nHost: a b\r\n\r\n", "400"),
        ("GET http://web/ HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
        ("GET http://web/ HTTP/1.1\r\nHost: a@b\r\n\r\n", "400"),
        // Folded lines and whitespace where there must be none (2.2, 5.1 and 5.2).
        ("GET http://web/ HTTP/1.1\r\n Host: x\r\n\r\n", "400"),
        (&with("a: b\r\n folded"), "400"),
        (&with("a : b"), "400"),
        (&with(": b"), "400"),
        (&with("a"), "400"),
        // Control characters in a value (RFC 9110, section 5.5).
        (&with("a: b\rc"), "400"),
        (&with("a: b\0c"), "400"),
        ("GET http://web/\r/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        (
            "OPTIONS http://web HTTP/1.1\r\nHost: x\r\nMax-Forwards: x\r\n\r\n",
            "400",
        ),
        (
            "TRACE http://web HTTP/1.1\r\nHost: x\r\nMax-Forwards: 1\r\nMax-Forwards: 1\r\n\r\n",
            "400",
        ),
        (&with(many.trim_end()), "431"),
        (&field, "431"),
        (&url, "414"),
    ] {
        assert_eq!(status(hear(text)), expected, "{text:?}");
    }
}

#[test]
fn a_head_may_have_64_kib_and_256_fields() {
    let of = |length: usize| {
        let begin = "GET http://web/ HTTP/1.1\r\nHost: x\r\na: ";
        format!("{begin}{}\r\n\r\n", "v".repeat(length - begin.len() - 4))
    };
    forwarded(&of(HEAD_BYTES_MAX));
    assert_eq!(status(hear(&of(HEAD_BYTES_MAX + 1))), "431");
    let many = |count: usize| {
        let fields = "a: b\r\n".repeat(count - 1);
        format!("GET http://web/ HTTP/1.1\r\nHost: x\r\n{fields}\r\n")
    };
    forwarded(&many(FIELDS_MAX));
    assert_eq!(status(hear(&many(FIELDS_MAX + 1))), "431");
    let line = format!(
        "GET http://web/{} HTTP/1.1\r\nHost: x\r\n\r\n",
        "p".repeat(8_000)
    );
    forwarded(&line);
}

#[test]
fn a_request_whose_end_is_ambiguous_is_refused() {
    for (fields, expected) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked", "400"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0", "400"),
        ("Content-Length: 4\r\nContent-Length: 5", "400"),
        ("Content-Length: 4, 5", "400"),
        ("Content-Length: 4,", "400"),
        ("Content-Length: +4", "400"),
        ("Content-Length: 4 4", "400"),
        ("Content-Length: 0x4", "400"),
        ("Content-Length: 99999999999999999999", "400"),
        ("Content-Length:", "400"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "400",
        ),
        ("Transfer-Encoding: chunked, identity", "400"),
        ("Transfer-Encoding: gzip", "400"),
        ("Transfer-Encoding: xchunked", "400"),
        ("Transfer-Encoding: chunked;a=b", "400"),
        ("Transfer-Encoding:", "400"),
        ("Transfer-Encoding: gzip, chunked", "501"),
        ("X: 1\r\n Content-Length: 4", "400"),
        ("Content-Length : 4", "400"),
    ] {
        let request = format!("POST http://web/ HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\nbody");
        assert_eq!(status(hear(&request)), expected, "{fields}");
    }
    let old = "POST http://web/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(status(hear(old)), "400");
}

#[test]
fn a_connection_persists_unless_the_client_or_its_version_says_otherwise() {
    for (version, fields, persists) in [
        ("1.1", "", true),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: X-Hop, Close\r\n", false),
        ("1.1", "Connection: X-Hop\r\nConnection: close\r\n", false),
        ("1.1", "Proxy-Connection: close\r\n", true),
        // A proxy keeps no connection of HTTP/1.0 (RFC 9112, section 9.3).
        ("1.0", "", false),
        (
            "1.0",
            "Connection: keep-alive\r\nProxy-Connection: keep-alive\r\n",
            false,
        ),
    ] {
        let text = format!("GET http://web/ HTTP/{version}\r\nHost: x\r\n{fields}\r\n");
        let (_, request, _) = forwarded(&text);
        assert_eq!(request.persists, persists, "{version} {fields}");
        assert_eq!(request.hears_informational, version == "1.1");
        let head = String::from_utf8(request.head).unwrap();
        assert_eq!(head.contains("\r\nConnection: close\r\n"), !persists);
        assert!(
            head.contains(&format!("\r\nVia: {version} muxgate\r\n")),
            "{head}"
        );
    }
}

#[test]
fn an_expectation_is_for_a_body_of_http_1_1() {
    for (version, fields, expects, kept) in [
        (
            "1.1",
            "Expect: 100-Continue\r\nContent-Length: 4\r\n",
            true,
            false,
        ),
        (
            "1.1",
            "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
            true,
            false,
        ),
        ("1.1", "Expect: 100-continue\r\n", false, false),
        (
            "1.0",
            "Expect: 100-continue\r\nContent-Length: 4\r\n",
            false,
            false,
        ),
        // The target decides whether it can meet an unknown expectation.
        ("1.1", "Expect: other\r\nContent-Length: 4\r\n", false, true),
        (
            "1.0",
            "Expect: other\r\nContent-Length: 4\r\n",
            false,
            false,
        ),
    ] {
        let text = format!("PUT http://web/ HTTP/{version}\r\nHost: x\r\n{fields}\r\n");
        let (_, request, _) = forwarded(&text);
        let head = String::from_utf8(request.head).unwrap();
        assert_eq!(
            (request.expects, head.contains("Expect")),
            (expects, kept),
            "{text}"
        );
    }
}

#[test]
fn trace_and_options_count_the_proxies() {
    for (line, fields, expected) in [
        (
            "OPTIONS http://web HTTP/1.1",
            "Max-Forwards: 5\r\n",
            "\r\nMax-Forwards: 4\r\n",
        ),
        (
            "TRACE http://web/ HTTP/1.1",
            "max-forwards: 1\r\n",
            "\r\nMax-Forwards: 0\r\n",
        ),
        // Other methods ignore the field.
        (
            "GET http://web/ HTTP/1.1",
            "Max-Forwards: 0\r\n",
            "\r\nMax-Forwards: 0\r\n",
        ),
    ] {
        let head = head_of(line, fields);
        assert!(head.contains(expected), "{head}");
        assert_eq!(
            head.to_lowercase().matches("max-forwards").count(),
            1,
            "{head}"
        );
    }
    let answer = |text: &str| match hear(text).end {
        End::Answered { reply } => String::from_utf8(reply).unwrap(),
        end => panic!("{end:?}"),
    };
    let options = answer("OPTIONS http://web HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n");
    assert!(options.starts_with("HTTP/1.1 200 OK\r\n"), "{options}");
    assert!(options.ends_with("\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    let secrets =
        "Cookie: c\r\nAuthorization: a\r\nProxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
    let text = format!(
        "TRACE http://web/x HTTP/1.1\r\nHost: x\r\n{secrets}Max-Forwards: 0\r\nA: b\r\n\r\n"
    );
    let trace = answer(&text);
    assert!(
        trace.contains("\r\nContent-Type: message/http\r\n"),
        "{trace}"
    );
    let seen = "TRACE http://web/x HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\nA: b\r\n\r\n";
    assert!(trace.ends_with(&format!("\r\n\r\n{seen}")), "{trace}");
    // The gateway answers only clients that may use it.
    assert!(matches!(
        whole(http(), Some(&Alice), text.as_bytes()).end,
        End::Answered { .. }
    ));
    let unknown = text.replace(secrets, "");
    assert_eq!(
        status(whole(http(), Some(&Alice), unknown.as_bytes())),
        "407"
    );
}

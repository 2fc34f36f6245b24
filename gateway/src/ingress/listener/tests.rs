//! Input of clients, as a whole and in pieces, and the expected results.

use proptest::prelude::*;

use super::oracle::{Alice, End, Outcome, converse};
use super::*;

fn socks5() -> Dialogue {
    Dialogue::Socks5(socks5::Stage::default())
}

pub(super) fn http() -> Dialogue {
    Dialogue::Http(http::Head::default())
}

fn auto(target: Option<&str>) -> Dialogue {
    Dialogue::Auto {
        target: target.map(Into::into),
    }
}

pub(super) fn whole(
    dialogue: Dialogue,
    authenticator: Option<&dyn Authenticator>,
    bytes: &[u8],
) -> Outcome {
    converse(dialogue, authenticator, [bytes])
}

fn asks(url: &str, answer: Answer, rest: &[u8]) -> End {
    End::Asks {
        request: Request {
            url: url.into(),
            forwarded: None,
            answer,
        },
        rest: rest.to_vec(),
    }
}

fn socks5_request(address: &[u8]) -> Vec<u8> {
    [b"\x05\x01\x00\x05\x01\x00", address, b"early"].concat()
}

#[test]
fn a_socks5_client_names_its_target_in_three_ways() {
    let v6 = [
        b"\x04",
        &[0x20, 1, 0xd, 0xb8][..],
        &[0; 11],
        b"\x01\x00\x50",
    ]
    .concat();
    for (address, url) in [
        (&b"\x01\x0a\x00\x00\x01\x1f\x90"[..], "tcp://10.0.0.1:8080"),
        (b"\x03\x08web.shop\x00\x50", "tcp://web.shop:80"),
        (b"\x03\x03::1\x00\x50", "tcp://::1:80"),
        (&v6, "tcp://2001:db8::1:80"),
    ] {
        let outcome = whole(socks5(), None, &socks5_request(address));
        assert_eq!(outcome.told, b"\x05\x00");
        assert_eq!(outcome.end, asks(url, Answer::Socks5, b"early"));
    }
}

#[test]
fn a_socks5_client_says_who_it_is_where_that_is_asked_for() {
    let good = b"\x05\x02\x00\x02\x01\x05alice\x06secret\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    let outcome = whole(socks5(), Some(&Alice), good);
    assert_eq!(outcome.told, b"\x05\x02\x01\x00");
    assert_eq!(outcome.end, asks("tcp://127.0.0.1:80", Answer::Socks5, b""));
    let rejected = |reply: &[u8], code| End::Rejected {
        reply: reply.to_vec(),
        code,
    };
    let wrong = b"\x05\x01\x02\x01\x05alice\x05wrong\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    assert_eq!(
        whole(socks5(), Some(&Alice), wrong).end,
        rejected(b"\x01\x01", Code::PasswordWrong)
    );
    let none = b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    assert_eq!(
        whole(socks5(), Some(&Alice), none).end,
        rejected(b"\x05\xff", Code::ClientUnknown)
    );
    // A port without authentication accepts any user name from a client that offers only the user
    // name method.
    let outcome = whole(socks5(), None, wrong);
    assert_eq!(outcome.end, asks("tcp://127.0.0.1:80", Answer::Socks5, b""));
}

/// An authenticator without free capacity.
struct Busy;

impl Authenticator for Busy {
    fn authenticate(&self, _user: &[u8], _password: &[u8]) -> Verdict {
        Verdict::Busy
    }
}

#[test]
fn a_client_whose_password_nobody_can_verify_now_hears_so_in_its_protocol() {
    let said = b"\x05\x01\x02\x01\x05alice\x06secret\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50";
    let expected = End::Rejected {
        reply: b"\x01\x01".to_vec(),
        code: Code::PasswordsBusy,
    };
    assert_eq!(whole(socks5(), Some(&Busy), said).end, expected);
    let field = "Proxy-Authorization: Basic YWxpY2U6c2VjcmV0";
    let text = format!("CONNECT web:80 HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n");
    let outcome = whole(http(), Some(&Busy), text.as_bytes());
    assert!(matches!(
        &outcome.end,
        End::Rejected {
            code: Code::PasswordsBusy,
            ..
        }
    ));
    assert_eq!(status(outcome), "503");
}

#[test]
fn what_socks5_does_not_have_is_refused_by_its_number() {
    for (request, reply) in [
        (&b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50"[..], 7),
        (b"\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", 7),
        (b"\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x50", 8),
        (b"\x05\x01\x00\x03\x00\x00\x50", 1),
        (b"\x05\x01\x00\x03\x03a b\x00\x50", 1),
        (b"\x05\x01\x00\x03\x03a\n1\x00\x50", 1),
        (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", 1),
        (b"\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50", 1),
    ] {
        let outcome = whole(socks5(), None, &[b"\x05\x01\x00", request].concat());
        let expected = End::Rejected {
            reply: vec![5, reply, 0, 1, 0, 0, 0, 0, 0, 0],
            code: Code::ClientRequestInvalid,
        };
        assert_eq!(outcome.end, expected, "{request:?}");
    }
    for methods in [&b"\x05\x00"[..], b"\x05\x01\x01", b"GET / HTTP/1.1"] {
        let End::Rejected { reply, .. } = whole(socks5(), None, methods).end else {
            panic!("{methods:?}");
        };
        assert_eq!(reply, b"\x05\xff");
    }
}

#[test]
fn what_a_socks5_client_sends_in_a_reserved_field_has_no_effect() {
    let said = b"\x05\x01\x00\x05\x01\xff\x01\x7f\x00\x00\x01\x00\x50";
    let expected = asks("tcp://127.0.0.1:80", Answer::Socks5, b"");
    assert_eq!(whole(socks5(), None, said).end, expected);
}

#[test]
fn a_socks4_client_names_an_address_or_with_4a_a_name() {
    for (request, url) in [
        (
            &b"\x04\x01\x00\x50\x0a\x00\x00\x01me\x00"[..],
            "tcp://10.0.0.1:80",
        ),
        (
            b"\x04\x01\x00\x50\x00\x00\x00\x01\x00web\x00",
            "tcp://web:80",
        ),
    ] {
        let outcome = whole(auto(None), None, &[request, b"early"].concat());
        assert_eq!(outcome.end, asks(url, Answer::Socks4, b"early"));
        assert!(outcome.told.is_empty());
    }
    let rejected = |code| End::Rejected {
        reply: b"\x00\x5b\x00\x00\x00\x00\x00\x00".to_vec(),
        code,
    };
    let long = [b"\x04\x01\x00\x50\x0a\x00\x00\x01", &[b'x'; 256][..]].concat();
    for bad in [
        &b"\x04\x02"[..],
        b"\x04\x01\x00\x50\x00\x00\x00\x01\x00\x00",
        &long,
    ] {
        let outcome = whole(auto(None), None, bad);
        assert_eq!(outcome.end, rejected(Code::ClientRequestInvalid), "{bad:?}");
    }
    let known = b"\x04\x01\x00\x50\x0a\x00\x00\x01alice\x00";
    let outcome = whole(auto(None), Some(&Alice), known);
    assert_eq!(outcome.end, rejected(Code::ClientUnknown));
}

#[test]
fn an_http_client_connects_to_an_authority() {
    for (target, url) in [
        ("web.shop:443", "tcp://web.shop:443"),
        ("10.0.0.1:80", "tcp://10.0.0.1:80"),
        ("[2001:db8::1]:443", "tcp://2001:db8::1:443"),
    ] {
        let text =
            format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Connection: y\r\n\r\nearly");
        let outcome = whole(http(), None, text.as_bytes());
        assert_eq!(outcome.end, asks(url, Answer::Connect, b"early"));
        // The target is in the request line, so `Host` may be absent.
        let text = format!("CONNECT {target} HTTP/1.1\r\n\r\nearly");
        let outcome = whole(http(), None, text.as_bytes());
        assert_eq!(outcome.end, asks(url, Answer::Connect, b"early"));
    }
    for target in [
        "web",
        "web:",
        "web:0",
        "web:x",
        "web:+80",
        "web:99999",
        "::1:80",
        "[web]:80",
        "a@b:80",
        "/",
    ] {
        let text = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(
            status(whole(http(), None, text.as_bytes())),
            "400",
            "{target}"
        );
    }
}

/// The status code of a rejection.
pub(super) fn status(outcome: Outcome) -> String {
    match outcome.end {
        End::Rejected { reply, .. } => {
            let text = String::from_utf8(reply).unwrap();
            assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
            text.split(' ').nth(1).unwrap().to_owned()
        }
        end => panic!("{end:?}"),
    }
}

#[test]
fn an_http_client_says_who_it_is_where_that_is_asked_for() {
    let with = |field: &str| {
        let text = format!("CONNECT web:80 HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n");
        whole(http(), Some(&Alice), text.as_bytes())
    };
    // alice:secret
    for field in [
        "Proxy-Authorization: Basic YWxpY2U6c2VjcmV0",
        "proxy-authorization:basic  YWxpY2U6c2VjcmV0 ",
    ] {
        assert_eq!(
            with(field).end,
            asks("tcp://web:80", Answer::Connect, b""),
            "{field}"
        );
    }
    let (none, wrong) = (Code::ClientUnknown, Code::PasswordWrong);
    for (field, expected) in [
        ("Host: web:80", none),
        ("Authorization: Basic YWxpY2U6c2VjcmV0", none),
        ("Proxy-Authorization: Basic YWxpY2U6d3Jvbmc=", wrong),
        ("Proxy-Authorization: Basic YWxpY2U=", none),
        ("Proxy-Authorization: Basic !", none),
        ("Proxy-Authorization: Digest YWxpY2U6c2VjcmV0", none),
        (
            "Proxy-Authorization: Basic YWxpY2U6d3Jvbmc=\r\nProxy-Authorization: Basic YWxpY2U6c2VjcmV0",
            wrong,
        ),
    ] {
        let outcome = with(field);
        let is_expected = matches!(&outcome.end, End::Rejected { code, .. } if *code == expected);
        assert!(is_expected, "{field}: {outcome:?}");
        assert_eq!(status(outcome), "407", "{field}");
    }
}

#[test]
fn one_port_tells_its_clients_by_as_few_bytes_as_can_be() {
    let raw = |bytes: &[u8]| whole(auto(Some("tcp://x:1")), None, bytes).end;
    for bytes in [
        &b"\x16\x03\x01"[..],
        b"SSH-2.0-x",
        b"GET /",
        b"GET https://",
        b"EHLO x",
        b"CONNECTED x",
        b"\x04\x09",
        b"\x05\x00",
        b"\n",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    ] {
        assert_eq!(
            raw(bytes),
            asks("tcp://x:1", Answer::None, bytes),
            "{bytes:?}"
        );
    }
    for bytes in [
        &b""[..],
        b"\x04",
        b"\x05",
        b"G",
        b"GET ",
        b"GET http:/",
        b"CONNECT",
        b"GET http://web/",
    ] {
        assert_eq!(raw(bytes), End::Waits, "{bytes:?}");
    }
    // Without a default target, a client that uses HTTP receives the reason.
    assert_eq!(
        status(whole(auto(None), None, b"GET / HTTP/1.1\r\n\r\n")),
        "400"
    );
}

#[test]
fn a_client_that_says_nothing_gets_the_target_where_there_is_one() {
    let mut with_target = auto(Some("tcp://x:1"));
    assert_eq!(with_target.step(b"GE", None), Ok(Step::Incomplete));
    assert_eq!(with_target.give_up().unwrap().url, "tcp://x:1".into());
    assert_eq!(auto(None).give_up(), None);
    let mut told = auto(Some("tcp://x:1"));
    assert_eq!(told.step(b"\x05\x01", None), Ok(Step::Incomplete));
    assert_eq!(told.give_up(), None, "it speaks SOCKS5");
}

/// Valid and invalid input of clients.
fn sayings() -> impl Strategy<Value = Vec<u8>> {
    let known: Vec<&'static [u8]> = vec![
        b"\x05\x01\x00\x05\x01\x00\x03\x03web\x00\x50early",
        b"\x05\x02\x00\x02\x01\x05alice\x06secret\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50early",
        b"\x04\x01\x00\x50\x00\x00\x00\x01me\x00web\x00early",
        b"CONNECT web:80 HTTP/1.1\r\nHost: web\r\nProxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n\r\nearly",
        b"GET http://web/x HTTP/1.1\nHost: web\nProxy-Authorization: Basic YWxpY2U6c2VjcmV0\n\nearly",
        b"\x16\x03\x01 not for a proxy",
    ];
    let changed = (
        proptest::sample::select(known),
        proptest::option::of((any::<proptest::sample::Index>(), any::<u8>())),
    );
    let changed = changed.prop_map(|(saying, change)| {
        let mut saying = saying.to_vec();
        if let Some((at, byte)) = change {
            let at = at.index(saying.len());
            saying[at] = byte;
        }
        saying
    });
    prop_oneof![3 => changed, 1 => proptest::collection::vec(any::<u8>(), 0..600)]
}

fn dialogues() -> impl Strategy<Value = Dialogue> {
    proptest::sample::select(vec![socks5(), http(), auto(None), auto(Some("tcp://x:1"))])
}

proptest! {
    #[test]
    fn the_pieces_in_which_a_saying_comes_make_no_difference(
        dialogue in dialogues(),
        asked in any::<bool>(),
        saying in sayings(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
    ) {
        let authenticator: Option<&dyn Authenticator> = if asked { Some(&Alice) } else { None };
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(saying.len() + 1)).collect();
        cuts.extend([0, saying.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &saying[cut[0]..cut[1]]);
        let at_once = whole(dialogue.clone(), authenticator, &saying);
        prop_assert_eq!(&converse(dialogue.clone(), authenticator, pieces), &at_once);
        prop_assert_eq!(&converse(dialogue, authenticator, saying.chunks(1)), &at_once);
    }
}

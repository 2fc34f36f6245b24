//! Two muxgate processes on loopback as an HTTP proxy, with clients and targets that use the parts
//! of HTTP/1.1 that docs/proxy-conformance.md lists.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::common::*;

/// A proxy with one permitted target.
struct Proxy {
    _exit: Gate,
    entry: Gate,
    http: SocketAddr,
    auto: SocketAddr,
    forward: SocketAddr,
    listener: TcpListener,
    target: SocketAddr,
}

impl Proxy {
    fn start() -> Self {
        let (listener, target) = target();
        let [carrier, http, auto, forward] = [(); 4].map(|()| free_port());
        let exit = Gate::exit("Native", carrier, &[&target.to_string()]);
        let connect = format!("127.0.0.1:{carrier}");
        let [http_port, auto_port] = [http, auto].map(|port| port.to_string());
        let forwarded = format!("{forward}:{target}");
        let mut args = vec!["entry", "--security", "none", "--connect", &connect];
        args.extend(["--http-proxy", &http_port, "--auto", &auto_port]);
        args.extend(["--forward", &forwarded]);
        let entry = Gate::with_flags(&args).until_ready();
        let [http, auto, forward] =
            [http, auto, forward].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        Self {
            _exit: exit,
            entry,
            http,
            auto,
            forward,
            listener,
            target,
        }
    }

    /// A request of `method` with `fields`, which end with CRLF.
    fn request(&self, method: &str, path: &str, fields: &str) -> String {
        let target = self.target;
        format!("{method} http://{target}{path} HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n")
    }
}

/// Reads the head of a message, and no byte after it.
fn head(tcp: &TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.extend(exactly(tcp, 1));
    }
    String::from_utf8(bytes).unwrap()
}

fn exactly(mut tcp: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tcp.read_exact(&mut bytes).unwrap();
    bytes
}

fn answer(mut server: &TcpStream, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    server.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// The response to one request, with a body of `Content-Length`.
fn response(client: &TcpStream) -> (String, Vec<u8>) {
    let head = head(client);
    let length = head
        .lines()
        .find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("Content-Length")
                .then(|| value.parse().unwrap())
        })
        .unwrap_or(0);
    let body = exactly(client, length);
    (head, body)
}

#[test]
fn a_client_that_ends_its_half_after_its_request_gets_the_response() {
    let proxy = Proxy::start();
    let body = pattern(1, 3 << 20);
    for port in [proxy.http, proxy.auto] {
        for fields in ["", "Connection: close\r\n"] {
            let mut client = connect(port);
            let request = proxy.request("GET", "/a", fields);
            client.write_all(request.as_bytes()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let server = accept(&proxy.listener);
            assert!(head(&server).starts_with("GET /a HTTP/1.1\r\n"));
            let sent = body.clone();
            let sender = std::thread::spawn(move || answer(&server, &sent));
            let (_, got) = response(&client);
            assert!(got == body);
            sender.join().unwrap();
            assert_eq!(read_all(&client), b"");
        }
    }
}

#[test]
fn a_client_that_ends_its_half_while_its_body_is_uploaded_gets_the_response() {
    let proxy = Proxy::start();
    let body = pattern(2, 8 << 20);
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunked = {
        let mut bytes = Vec::new();
        for part in body.chunks(100_000) {
            bytes.extend(format!("{:x};x=\"y\"\r\n", part.len()).into_bytes());
            bytes.extend(part);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
        bytes
    };
    let coding = "Transfer-Encoding: chunked\r\n".to_owned();
    for (fields, sent, is_chunked) in [(length, body.clone(), false), (coding, chunked, true)] {
        let client = connect(proxy.http);
        let request = proxy.request("PUT", "/a", &fields).into_bytes();
        let sender = send_in_background(&client, [request, sent].concat(), true);
        let server = accept(&proxy.listener);
        head(&server);
        if is_chunked {
            let mut all = Vec::new();
            while !all.ends_with(b"\r\n0\r\n\r\n") {
                let mut part = [0; 65_536];
                let length = (&server).read(&mut part).unwrap();
                assert!(length > 0);
                all.extend(&part[..length]);
            }
            assert!(all.len() > body.len());
        } else {
            assert!(exactly(&server, body.len()) == body);
        }
        sender.join().unwrap();
        answer(&server, b"ok");
        assert_eq!(response(&client).1, b"ok");
        assert_eq!(read_all(&client), b"");
    }
}

#[test]
fn several_requests_of_a_connection_are_answered_in_order_to_its_half_closed_end() {
    let proxy = Proxy::start();
    let serve = |count: usize| {
        for index in 0..count {
            let server = accept(&proxy.listener);
            let seen = head(&server);
            assert!(seen.starts_with(&format!("POST /{index} ")), "{seen}");
            assert_eq!(exactly(&server, 4), b"body", "{seen}");
            answer(&server, index.to_string().as_bytes());
        }
    };
    let request = |index: usize| {
        proxy.request("POST", &format!("/{index}"), "Content-Length: 4\r\n") + "body"
    };
    for port in [proxy.http, proxy.auto] {
        // One after the other, as curl sends them.
        let mut client = connect(port);
        for index in 0..3 {
            client.write_all(request(index).as_bytes()).unwrap();
            if index == 2 {
                client.shutdown(Shutdown::Write).unwrap();
            }
            let server = accept(&proxy.listener);
            assert!(head(&server).starts_with(&format!("POST /{index} ")));
            exactly(&server, 4);
            answer(&server, index.to_string().as_bytes());
            assert_eq!(response(&client).1, index.to_string().into_bytes());
        }
        assert_eq!(read_all(&client), b"");
        // All at once, with an empty line between two requests.
        let mut client = connect(port);
        let all = [request(0), request(1), request(2)].join("\r\n");
        client.write_all(all.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        serve(3);
        for index in 0..3 {
            assert_eq!(response(&client).1, index.to_string().into_bytes());
        }
        assert_eq!(read_all(&client), b"");
    }
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let proxy = Proxy::start();
    let mut client = connect(proxy.http);
    client
        .write_all(proxy.request("GET", "/", "").as_bytes())
        .unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let server = accept(&proxy.listener);
    head(&server);
    let socket = socket2::SockRef::from(&client);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    let end = (&server).read(&mut [0]).map_err(|error| error.kind());
    assert!(
        matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)),
        "{end:?}"
    );
}

#[test]
fn a_forwarded_port_and_a_connect_pass_the_end_of_a_half() {
    let proxy = Proxy::start();
    let line = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", proxy.target);
    for (port, line) in [
        (proxy.forward, String::new()),
        (proxy.http, line.clone()),
        (proxy.auto, line),
    ] {
        let mut client = connect(port);
        client.write_all(line.as_bytes()).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let server = accept(&proxy.listener);
        if !line.is_empty() {
            assert!(head(&client).starts_with("HTTP/1.1 200 "));
        }
        assert_eq!(read_all(&server), b"GET / HTTP/1.0\r\n\r\n");
        answer(&server, b"ok");
        drop(server);
        assert!(read_all(&client).ends_with(b"\r\n\r\nok"));
    }
}

/// The longest head of a request, and the most fields.
const HEAD_BYTES: usize = 64 << 10;
const FIELDS: usize = 256;

#[test]
fn long_heads_are_read_to_their_bounds() {
    let proxy = Proxy::start();
    let target = proxy.target;
    let with_path = |length: usize| {
        let head = |path: &str| format!("GET http://{target}/{path} HTTP/1.1\r\nHost: x\r\n\r\n");
        head(&"p".repeat(length - head("").len()))
    };
    let with_fields = |count: usize| {
        let fields = "X-Field: value\r\n".repeat(count - 1);
        format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\n{fields}\r\n")
    };
    let with_field = |length: usize| {
        let head = |value: &str| {
            format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\nCookie: {value}\r\n\r\n")
        };
        head(&"c".repeat(length - head("").len()))
    };
    let line = format!(
        "GET http://{target}/{} HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n",
        "p".repeat(8_000),
        "c".repeat(600)
    );
    for request in [
        line,
        with_path(HEAD_BYTES),
        with_field(HEAD_BYTES),
        with_fields(FIELDS),
    ] {
        let client = connect(proxy.http);
        let sender = send_in_background(&client, request.clone().into_bytes(), false);
        let server = accept(&proxy.listener);
        let seen = head(&server);
        assert!(
            seen.len() + 100 > request.len(),
            "{} of {}",
            seen.len(),
            request.len()
        );
        answer(&server, b"ok");
        assert_eq!(response(&client).1, b"ok");
        sender.join().unwrap();
    }
    // The rejected request is complete, or not: an endless line, and endless fields.
    let endless_line = format!("GET http://{target}/{}", "p".repeat(HEAD_BYTES));
    let endless = format!(
        "GET http://{target}/ HTTP/1.1\r\nCookie: {}",
        "c".repeat(HEAD_BYTES)
    );
    let connect_line = format!("CONNECT {}:80", "w".repeat(HEAD_BYTES));
    for (request, status) in [
        (with_field(HEAD_BYTES + 1), "431"),
        (with_fields(FIELDS + 1), "431"),
        (endless, "431"),
        (endless_line, "414"),
        (connect_line, "414"),
    ] {
        let mut client = connect(proxy.http);
        client.write_all(request.as_bytes()).unwrap();
        let head = head(&client);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{status}: {head}"
        );
    }
}

#[test]
fn informational_responses_are_passed_on_but_not_to_clients_of_http_1_0() {
    let proxy = Proxy::start();
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n";
    for version in ["1.1", "1.0"] {
        let mut client = connect(proxy.http);
        let request = format!(
            "GET http://{0}/ HTTP/{version}\r\nHost: {0}\r\n\r\n",
            proxy.target
        );
        client.write_all(request.as_bytes()).unwrap();
        let mut server = accept(&proxy.listener);
        head(&server);
        server.write_all(hints.as_bytes()).unwrap();
        server
            .write_all(b"HTTP/1.1 102 Processing\r\n\r\n")
            .unwrap();
        if version == "1.1" {
            let seen = head(&client).to_lowercase();
            assert!(
                seen.starts_with("http/1.1 103 early hints\r\nlink: </x>\r\n"),
                "{seen}"
            );
            assert!(
                !seen.contains("hop") && seen.contains("\r\nvia: 1.1 muxgate\r\n"),
                "{seen}"
            );
            assert!(head(&client).starts_with("HTTP/1.1 102 "));
        }
        answer(&server, b"ok");
        let (seen, body) = response(&client);
        assert!(seen.contains(" 200 OK\r\n"), "{seen}");
        assert_eq!(body, b"ok");
    }
}

#[test]
fn the_expectation_of_a_client_is_its_targets_to_answer() {
    let proxy = Proxy::start();
    let mut client = connect(proxy.http);
    let fields = "Expect: 100-continue\r\nContent-Length: 4\r\n";
    client
        .write_all(proxy.request("PUT", "/", fields).as_bytes())
        .unwrap();
    let mut server = accept(&proxy.listener);
    assert!(head(&server).contains("\r\nExpect: 100-continue\r\n"));
    server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
    assert_eq!(exactly(&client, 25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").unwrap();
    assert_eq!(exactly(&server, 4), b"body");
    answer(&server, b"ok");
    let (seen, body) = response(&client);
    assert!(
        seen.starts_with("HTTP/1.1 200 OK\r\n") && body == b"ok",
        "{seen}"
    );
    // HTTP/1.0 has no expectations.
    let mut client = connect(proxy.http);
    let request = format!("PUT http://{}/ HTTP/1.0\r\n{fields}\r\nbody", proxy.target);
    client.write_all(request.as_bytes()).unwrap();
    let server = accept(&proxy.listener);
    assert!(!head(&server).contains("Expect"));
    assert_eq!(exactly(&server, 4), b"body");
    answer(&server, b"ok");
    assert_eq!(response(&client).1, b"ok");
}

#[test]
fn a_refused_request_leaves_its_connection_for_the_next() {
    let proxy = Proxy::start();
    let mut client = connect(proxy.http);
    // The exit refuses the first target.
    client
        .write_all(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let (seen, _) = response(&client);
    assert!(seen.starts_with("HTTP/1.1 403 "), "{seen}");
    client
        .write_all(proxy.request("GET", "/", "").as_bytes())
        .unwrap();
    let server = accept(&proxy.listener);
    head(&server);
    answer(&server, b"ok");
    assert_eq!(response(&client).1, b"ok");
}

#[test]
fn a_connection_between_two_requests_ends_in_order_when_the_gateway_shuts_down() {
    let proxy = Proxy::start();
    let mut client = connect(proxy.http);
    client
        .write_all(proxy.request("GET", "/", "").as_bytes())
        .unwrap();
    let server = accept(&proxy.listener);
    head(&server);
    answer(&server, b"ok");
    drop(server);
    let (seen, _) = response(&client);
    assert!(!seen.contains("close"), "{seen}");
    proxy.entry.signal("TERM");
    assert_eq!(read_all(&client), b"");
    assert!(proxy.entry.wait().success());
}

//! Two muxgate processes on loopback with third-party clients: curl, ssh, nc, ncat, proxychains and
//! git, each with its usual options.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use crate::common::tools::{curl, http_server, output, run, sshd, stdout};
use crate::common::*;

const SECRET: &str = "correct horse";

/// An exit, and an entry with a listener for each ingress protocol.
struct Tunnel {
    entry: Gate,
    exit: Gate,
    socks5: String,
    http: String,
    auto: String,
    folder: tempfile::TempDir,
}

impl Tunnel {
    /// Starts the tunnel. The exit may dial `allow`. With `password`, only user alice may connect.
    fn to(allow: &[&str], password: bool) -> Self {
        let carrier = free_port();
        let exit = Gate::exit("Native", carrier, allow);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, format!("{SECRET}\n")).unwrap();
        let connect = format!("127.0.0.1:{carrier}");
        let [socks5, http, auto] =
            [free_port(), free_port(), free_port()].map(|port| port.to_string());
        let mut args = vec!["entry", "--security", "none", "--connect", &connect];
        args.extend(["--socks5", &socks5, "--http-proxy", &http, "--auto", &auto]);
        if password {
            args.extend([
                "--proxy-auth",
                "alice",
                "--proxy-password-file",
                file.to_str().unwrap(),
            ]);
        }
        let entry = Gate::with_flags(&args).until_ready();
        let at = |port: String| format!("127.0.0.1:{port}");
        Self {
            entry,
            exit,
            socks5: at(socks5),
            http: at(http),
            auto: at(auto),
            folder,
        }
    }

    /// The proxy options of curl for each listener.
    fn curl_ways(&self) -> Vec<[&str; 3]> {
        let mut ways = Vec::new();
        for socks5 in [&self.socks5, &self.auto] {
            ways.push(["--socks5", socks5, "--silent"]);
            ways.push(["--socks5-hostname", socks5, "--silent"]);
        }
        for http in [&self.http, &self.auto] {
            ways.push(["--proxy", http, "--silent"]);
            ways.push(["--proxy", http, "--proxytunnel"]);
        }
        ways
    }
}

/// Serves a site with one page. Returns its folder, its address, and its URL with a host name.
fn site() -> (tempfile::TempDir, SocketAddr, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("page"), pattern(1, 3 << 20)).unwrap();
    let address = http_server(folder.path());
    let named = format!("localhost:{}", address.port());
    (folder, address, named)
}

#[test]
fn curl_gets_a_page_by_socks5_and_by_both_ways_of_an_http_proxy() {
    let (_folder, address, named) = site();
    let tunnel = Tunnel::to(&[&address.to_string(), &named], false);
    for way in tunnel.curl_ways() {
        let page = curl(&[&way[..], &[&format!("http://{named}/page")]].concat());
        assert!(page.status.success(), "{way:?}: {page:?}");
        assert_eq!(page.stdout, pattern(1, 3 << 20), "{way:?}");
    }
    for way in [["--socks4", &tunnel.auto], ["--socks4a", &tunnel.auto]] {
        let page = curl(&[&way[..], &[&format!("http://{named}/page")]].concat());
        assert_eq!(page.stdout, pattern(1, 3 << 20), "{way:?}: {page:?}");
    }
    // The exit receives the name that the client used, regardless of the side that resolves the
    // name.
    tunnel
        .exit
        .line(&[&format!("tcp://{named}"), "Stream closed"]);
    tunnel
        .exit
        .line(&[&format!("tcp://{address}"), "Stream closed"]);
}

#[test]
fn a_request_for_an_absolute_url_comes_to_the_target_as_its_own() {
    let (_folder, address, _) = site();
    let tunnel = Tunnel::to(&[&address.to_string()], false);
    let url = format!("http://{address}/echo?a=b");
    let seen = stdout(&curl(&["--proxy", &tunnel.http, "--data", "body", &url]));
    assert!(seen.starts_with("POST /echo?a=b HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("\r\nHost: {address}\r\n")), "{seen}");
    assert!(
        seen.ends_with("\r\nConnection: close\r\n\r\nbody"),
        "{seen}"
    );
    assert!(!seen.contains("Proxy-"), "{seen}");
}

#[test]
fn each_request_of_a_client_reaches_its_own_target() {
    let sites = [site(), site()];
    let [(_, first, _), (_, second, _)] = &sites;
    let tunnel = Tunnel::to(&[&first.to_string(), &second.to_string()], true);
    let user = format!("alice:{SECRET}");
    let urls = [first, second].map(|address| format!("http://{address}/echo"));
    // For the second request, curl reuses the connection to a proxy if possible.
    for proxy in [&tunnel.http, &tunnel.auto] {
        let way = ["--proxy", proxy, "--proxy-user", &user];
        let seen = stdout(&curl(&[&way[..], &[&urls[0], &urls[1]]].concat()));
        for address in [first, second] {
            assert!(seen.contains(&format!("\r\nHost: {address}\r\n")), "{seen}");
        }
        assert!(!seen.contains("Proxy-"), "{seen}");
    }
}

#[test]
fn what_a_client_sends_behind_a_request_does_not_reach_its_target() {
    let (listener, first) = target();
    let (other, second) = target();
    let tunnel = Tunnel::to(&[&first.to_string(), &second.to_string()], false);
    let mut client = connect(tunnel.http.parse().unwrap());
    let request = |address: &SocketAddr| {
        let fields = "Connection: keep-alive\r\nProxy-Authorization: Basic eDp5";
        format!(
            "GET http://{address}/ HTTP/1.1\r\nHost: x\r\nCookie: {address}\r\n{fields}\r\n\r\n"
        )
    };
    let both = request(&first) + &request(&second);
    client.write_all(both.as_bytes()).unwrap();
    for (listener, own, others) in [(listener, first, second), (other, second, first)] {
        // A target that keeps its connection open, regardless of the request.
        let mut server = accept(&listener);
        let mut seen = read_until(&server, b"\r\n\r\n");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        server.write_all(answer).unwrap();
        let answer = String::from_utf8(read_until(&client, b"ok")).unwrap();
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        seen.extend(read_all(&server));
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.contains(&format!("\r\nCookie: {own}\r\n")), "{seen}");
        assert!(!seen.contains(&others.to_string()), "{seen}");
        assert!(!seen.contains("Proxy-"), "{seen}");
    }
}

/// Reads up to and including `end`.
fn read_until(mut tcp: &TcpStream, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.windows(end.len()).any(|found| found == end) {
        let mut part = [0; 4096];
        let length = tcp.read(&mut part).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend(&part[..length]);
    }
    bytes
}

#[test]
fn curl_is_served_with_the_password_alone() {
    let (_folder, address, named) = site();
    let tunnel = Tunnel::to(&[&address.to_string(), &named], true);
    let url = format!("http://{named}/page");
    for way in tunnel.curl_ways() {
        let as_user = |user: &str| curl(&[&way[..], &["--proxy-user", user, &url]].concat());
        let good = as_user(&format!("alice:{SECRET}"));
        assert_eq!(good.stdout, pattern(1, 3 << 20), "{way:?}: {good:?}");
        for bad in [
            as_user("alice:wrong"),
            as_user(&format!("bob:{SECRET}")),
            curl(&[&way[..], &[&url]].concat()),
        ] {
            assert_ne!(bad.stdout, pattern(1, 3 << 20), "{way:?}");
            assert_refused(&way, &bad, "", "407");
        }
        if way[0] == "--proxy" && !way.contains(&"--proxytunnel") {
            let shown = ["--output", "/dev/null", "--write-out", "%{http_code}", &url];
            let status = curl(&[&way[..], &shown].concat()).stdout;
            assert_eq!(status, b"407", "{way:?}");
        }
    }
    tunnel.entry.line(&["MT0241", "Connection refused"]);
    tunnel.entry.line(&["MT0246", "Connection refused"]);
    // The gateway reads the changed file before it verifies the next password.
    std::fs::write(tunnel.folder.path().join("password"), "another").unwrap();
    let way = [
        "--socks5",
        &tunnel.socks5,
        "--proxy-user",
        "alice:another",
        &url,
    ];
    assert_eq!(curl(&way).stdout, pattern(1, 3 << 20));
    assert!(!tunnel.entry.log().contains(SECRET));
}

#[test]
fn each_request_of_a_connection_has_its_own_password() {
    let (listener, address) = target();
    let tunnel = Tunnel::to(&[&address.to_string()], true);
    let mut client = connect(tunnel.http.parse().unwrap());
    let request =
        |field: &str| format!("GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n{field}\r\n");
    // alice:correct horse
    let known = request("Proxy-Authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==\r\n");
    client.write_all(known.as_bytes()).unwrap();
    let mut server = accept(&listener);
    read_until(&server, b"\r\n\r\n");
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    server.write_all(answer).unwrap();
    read_until(&client, b"ok");
    client.write_all(request("").as_bytes()).unwrap();
    let refused = String::from_utf8(read_all(&client)).unwrap();
    assert!(refused.starts_with("HTTP/1.1 407 "), "{refused}");
}

/// Asserts that curl reports the refusal: SOCKS5's `reply`, or the HTTP `status`.
fn assert_refused(way: &[&str], output: &Output, reply: &str, status: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    if way[0].starts_with("--socks") {
        // CURLE_PROXY
        assert_eq!(output.status.code(), Some(97), "{way:?}: {said}");
        assert!(said.contains(reply), "{way:?}: {said}");
    } else if way.contains(&"--proxytunnel") {
        assert_eq!(output.status.code(), Some(56), "{way:?}: {said}");
        assert!(
            said.contains(&format!("response {status}")),
            "{way:?}: {said}"
        );
    } else {
        let page = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && !page.is_empty(),
            "{way:?}: {said}"
        );
    }
}

#[test]
fn curl_hears_why_there_is_no_connection() {
    let (_folder, address, named) = site();
    let closed = free_port();
    let (full, _waiting) = full_target();
    let full = full.local_addr().unwrap();
    let allow = [format!("127.0.0.1:{closed}"), full.to_string()];
    let tunnel = Tunnel::to(&[&allow[0], &allow[1]], false);
    let refused = |address: &str, reply: &str, status: &str| {
        for way in tunnel.curl_ways() {
            let output = curl(&[&way[..], &[&format!("http://{address}/page")]].concat());
            assert_refused(&way, &output, reply, status);
            if !way[0].starts_with("--socks") {
                let url = format!("http://{address}/page");
                let code = [
                    "--output",
                    "/dev/null",
                    "--write-out",
                    "%{http_code} %{http_connect}",
                ];
                let said = curl(&[&way[..], &code, &[&url]].concat()).stdout;
                let said = String::from_utf8(said).unwrap();
                assert!(said.contains(status), "{way:?}: {said}");
            }
        }
    };
    // The exit refuses the target by address and by name.
    refused(&address.to_string(), "(2)", "403");
    refused(&named, "(2)", "403");
    refused(&format!("127.0.0.1:{closed}"), "(5)", "502");
    // One client of each protocol waits 10 s for the target that does not answer.
    let url = format!("http://{full}/");
    for way in [["--socks5", &tunnel.socks5], ["--proxy", &tunnel.http]] {
        let output = curl(&[&way[..], &["--proxytunnel", &url]].concat());
        assert_refused(&[way[0], "--proxytunnel"], &output, "(6)", "504");
    }
}

#[test]
fn ncat_and_nc_pass_what_both_ends_send_and_their_ends() {
    let (listener, address) = target();
    let tunnel = Tunnel::to(&[&address.to_string()], true);
    let port = address.port().to_string();
    let ways = [
        (
            "ncat",
            "ncat",
            vec!["--proxy-type", "socks5", "--proxy", &tunnel.socks5],
        ),
        (
            "ncat",
            "ncat",
            vec!["--proxy-type", "http", "--proxy", &tunnel.http],
        ),
    ];
    let user = format!("alice:{SECRET}");
    for (program, package, way) in ways {
        let args = [&way[..], &["--proxy-auth", &user, "127.0.0.1", &port]].concat();
        talk(&listener, program, package, &args);
    }
    let tunnel = Tunnel::to(&[&address.to_string()], false);
    for (protocol, proxy) in [
        ("5", &tunnel.socks5),
        ("connect", &tunnel.http),
        ("4", &tunnel.auto),
    ] {
        let args = ["-N", "-X", protocol, "-x", proxy, "127.0.0.1", &port];
        talk(&listener, "nc.openbsd", "netcat-openbsd", &args);
    }
}

/// Runs a client that sends data and ends its half. The target answers and then ends the
/// connection.
fn talk(listener: &TcpListener, program: &str, package: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut client = command
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}: apt-get install {package}"));
    let mut stdin = client.stdin.take().unwrap();
    let asked = pattern(2, 1 << 20);
    let writer = std::thread::spawn(move || {
        stdin.write_all(&asked).unwrap();
    });
    let mut server = accept(listener);
    assert_eq!(read_all(&server), pattern(2, 1 << 20), "{args:?}");
    writer.join().unwrap();
    server.write_all(&pattern(3, 1 << 20)).unwrap();
    drop(server);
    let mut got = Vec::new();
    client.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, pattern(3, 1 << 20), "{args:?}");
    assert!(client.wait().unwrap().success(), "{args:?}");
}

#[test]
fn a_target_that_speaks_first_is_heard_through_one_port_for_all() {
    let (listener, address) = target();
    let carrier = free_port();
    let exit = Gate::exit("Native", carrier, &[&address.to_string()]);
    let port = free_port();
    let auto = format!("{port}:{address}");
    let connect = format!("127.0.0.1:{carrier}");
    let args = [
        "entry",
        "--security",
        "none",
        "--connect",
        &connect,
        "--auto",
        &auto,
    ];
    let entry = Gate::with_flags(&args).until_ready();
    let mut client = connect_to(port);
    let mut server = accept(&listener);
    server.write_all(b"220 welcome\r\n").unwrap();
    let mut welcome = [0; 13];
    client.read_exact(&mut welcome).unwrap();
    client.write_all(b"EHLO x\r\n").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    // The gateway forwards the bytes of a client that sends first, without delay and without a
    // change.
    let mut client = connect_to(port);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut server = accept(&listener);
    let mut got = [0; 18];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"GET / HTTP/1.1\r\n\r\n");
    drop((entry, exit));
}

fn connect_to(port: u16) -> std::net::TcpStream {
    connect(SocketAddr::from(([127, 0, 0, 1], port)))
}

#[test]
fn ssh_logs_in_through_nc_and_ncat() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, port, options) = sshd(folder.path());
    let tunnel = Tunnel::to(&[&format!("127.0.0.1:{port}")], false);
    let port = port.to_string();
    for proxy in [
        format!("nc.openbsd -X 5 -x {} %h %p", tunnel.socks5),
        format!("nc.openbsd -X connect -x {} %h %p", tunnel.http),
        format!("ncat --proxy-type socks5 --proxy {} %h %p", tunnel.auto),
    ] {
        let proxy = format!("ProxyCommand={proxy}");
        let mut command = Command::new("ssh");
        command
            .args(&options)
            .args(["-p", &port, "-o", &proxy, "root@127.0.0.1", "echo arrived"]);
        let said = stdout(&output(&mut command, "ssh", "openssh-client"));
        assert_eq!(said, "arrived\n", "{proxy}");
    }
}

#[test]
fn proxychains_leads_a_program_that_knows_no_proxies() {
    let (_folder, address, _) = site();
    let tunnel = Tunnel::to(&[&address.to_string()], true);
    for (kind, proxy) in [("socks5", &tunnel.socks5), ("http", &tunnel.http)] {
        let (host, port) = proxy.split_once(':').unwrap();
        let config = tunnel.folder.path().join(kind);
        // The configuration of proxychains has no quoting, so the password is a single word.
        std::fs::write(tunnel.folder.path().join("password"), "horse").unwrap();
        let list = format!("strict_chain\n[ProxyList]\n{kind} {host} {port} alice horse\n");
        std::fs::write(&config, list).unwrap();
        let url = format!("http://{address}/page");
        let args = [
            "-q",
            "-f",
            config.to_str().unwrap(),
            "curl",
            "--silent",
            "--noproxy",
            "*",
            &url,
        ];
        let page = run("proxychains4", "proxychains4", &args);
        assert_eq!(page.stdout, pattern(1, 3 << 20), "{kind}: {page:?}");
    }
}

#[test]
fn git_clones_over_socks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (work, bare, clone) = (at("work"), at("site.git"), at("clone"));
    let git = |args: &[&str]| stdout(&run("git", "git", args));
    git(&["init", "--quiet", &work]);
    std::fs::write(format!("{work}/file"), pattern(4, 1 << 20)).unwrap();
    git(&["-C", &work, "add", "file"]);
    let author = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
    git(&[
        &["-C", &work][..],
        &author,
        &["commit", "--quiet", "--message", "one"],
    ]
    .concat());
    git(&["clone", "--quiet", "--bare", &work, &bare]);
    git(&["-C", &bare, "update-server-info"]);
    let address = http_server(folder.path());
    let named = format!("localhost:{}", address.port());
    let tunnel = Tunnel::to(&[&named], false);
    for (kind, proxy) in [("socks5h", &tunnel.socks5), ("http", &tunnel.http)] {
        let proxy = format!("http.proxy={kind}://{proxy}");
        git(&[
            "-c",
            &proxy,
            "clone",
            "--quiet",
            &format!("http://{named}/site.git"),
            &clone,
        ]);
        assert_eq!(
            std::fs::read(format!("{clone}/file")).unwrap(),
            pattern(4, 1 << 20)
        );
        std::fs::remove_dir_all(&clone).unwrap();
    }
}

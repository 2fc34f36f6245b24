//! Two muxgate processes: clients of SOCKS5 and of an HTTP proxy, with users from a file whose
//! passwords are hashed or plain text.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use crate::common::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Hashes of `secret` and of `correct-horse`, by crypt(3) of libxcrypt 4.4.33.
const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const HORSE: &str = "$2y$05$N9qo8uLOickgx2ZMRZoMye./bQohP2JNa6kJDfUyJqRUYQSX5M8SS";
/// SOCKS5's answers to a user name and password (RFC 1929).
const TAKEN: [u8; 2] = [1, 0];
const REFUSED: [u8; 2] = [1, 1];

/// An entry with two workers and a port for each protocol, an exit, and a target that echoes.
struct Proxies {
    entry: Gate,
    _exit: Gate,
    socks5: SocketAddr,
    http: SocketAddr,
    target: SocketAddr,
    users: PathBuf,
    _folder: tempfile::TempDir,
}

impl Proxies {
    fn with_users(text: &str) -> Self {
        let (listener, target) = target();
        std::thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut &tcp, &mut &tcp);
                    let _ = tcp.shutdown(Shutdown::Write);
                });
            }
        });
        let carrier = free_port();
        let exit = Gate::exit("Native", carrier, &[&target.to_string()]);
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, text).unwrap();
        let [socks5, http] =
            [free_port(), free_port()].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let forward = |name: &str, listen: SocketAddr| {
            let file = users.display();
            format!("- {{name: {name}, listen: '{listen}', protocol: {name}, usersFile: {file}}}\n")
        };
        let forwards = forward("SOCKS5", socks5) + &forward("HTTP", http);
        let entry = Gate::with_file(&format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nadmin: ADMIN\nworkers: 2\n\
             proxies:\n{forwards}"
        ));
        Self {
            entry: entry.until_ready(),
            _exit: exit,
            socks5,
            http,
            target,
            users,
            _folder: folder,
        }
    }

    /// A SOCKS5 client that has sent its user name and password.
    fn says(&self, user: &str, password: &str) -> TcpStream {
        let mut tcp = connect(self.socks5);
        let (user, password) = (counted(user), counted(password));
        let said = [&b"\x05\x01\x02\x01"[..], &user, &password].concat();
        tcp.write_all(&said).unwrap();
        assert_eq!(read_exactly(&tcp), [5, 2]);
        tcp
    }

    /// The answer to a SOCKS5 client's user name and password.
    fn socks5(&self, user: &str, password: &str) -> [u8; 2] {
        read_exactly(&self.says(user, password))
    }

    /// The stream of an accepted client.
    fn stream(&self, user: &str, password: &str) -> TcpStream {
        let mut tcp = self.says(user, password);
        assert_eq!(read_exactly(&tcp), TAKEN);
        let SocketAddr::V4(target) = self.target else {
            panic!("{}", self.target);
        };
        let (ip, port) = (target.ip().octets(), target.port().to_be_bytes());
        tcp.write_all(&[&b"\x05\x01\x00\x01"[..], &ip, &port].concat())
            .unwrap();
        let reply: [u8; 10] = read_exactly(&tcp);
        assert_eq!(reply[..2], [5, 0]);
        tcp
    }

    /// The status of the response to an HTTP client's CONNECT.
    fn http(&self, user: &str, password: &str) -> String {
        let mut tcp = connect(self.http);
        let credentials = STANDARD.encode(format!("{user}:{password}"));
        let target = self.target;
        write!(
            tcp,
            "CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
        )
        .unwrap();
        let line: [u8; 12] = read_exactly(&tcp);
        String::from_utf8(line[9..].to_vec()).unwrap()
    }

    /// Replaces the users file.
    fn replace_users(&self, text: &str) {
        let staged = self.users.with_extension("new");
        std::fs::write(&staged, text).unwrap();
        std::fs::rename(staged, &self.users).unwrap();
    }
}

fn counted(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[length], text.as_bytes()].concat()
}

fn read_exactly<const N: usize>(mut tcp: &TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    tcp.read_exact(&mut bytes).unwrap();
    bytes
}

/// Sends `bytes` and reads them back.
fn echo(mut tcp: &TcpStream, bytes: &[u8]) {
    let sends = send_in_background(tcp, bytes.to_vec(), false);
    let mut heard = vec![0; bytes.len()];
    tcp.read_exact(&mut heard).unwrap();
    assert!(heard == bytes);
    sends.join().unwrap();
}

#[test]
fn clients_are_served_with_the_password_of_a_hash_alone() {
    let proxies = Proxies::with_users(&format!("# two\nalice:{SECRET}\nbob:{HORSE}\n"));
    // The first result comes from a verification of the password, the second from the cache.
    for _ in 0..2 {
        for (user, password) in [("alice", "secret"), ("bob", "correct-horse")] {
            assert_eq!(proxies.socks5(user, password), TAKEN, "{user}");
            assert_eq!(proxies.http(user, password), "200", "{user}");
        }
        for (user, password) in [
            ("alice", "correct-horse"),
            ("alice", "Secret"),
            ("alice", SECRET),
            ("nobody", "secret"),
            ("bob", &"x".repeat(73)),
            ("bob", "correct-horse\0"),
        ] {
            assert_eq!(proxies.socks5(user, password), REFUSED, "{user}:{password}");
            assert_eq!(proxies.http(user, password), "407", "{user}:{password}");
        }
    }
    // Each wrong password counts against the client's address. A connection without a password does
    // not count.
    let mut asks = TcpStream::connect(proxies.http).unwrap();
    let request = format!("CONNECT {} HTTP/1.1\r\n\r\n", proxies.target);
    asks.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    asks.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
    let failed = metric(&proxies.entry, "muxgate_handshakes_failed_total ");
    assert_eq!(failed, 2 * 2 * 6);
    proxies
        .entry
        .line(&["MT0246", "Connection refused", "SOCKS5"]);
    let log = proxies.entry.log();
    for private in ["plain text", "secret", "horse", "$2y$"] {
        assert!(!log.contains(private), "{private}: {log}");
    }
}

#[test]
fn passwords_in_plain_text_are_taken_with_a_warning_that_says_what_to_do() {
    let proxies = Proxies::with_users(&format!("alice:open-sesame\nbob:{HORSE}\n"));
    for (user, password) in [("alice", "open-sesame"), ("bob", "correct-horse")] {
        assert_eq!(proxies.socks5(user, password), TAKEN, "{user}");
        assert_eq!(proxies.http(user, password), "200", "{user}");
    }
    assert_eq!(proxies.socks5("alice", "wrong"), REFUSED);
    let path = proxies.users.to_str().unwrap();
    proxies
        .entry
        .line(&["WARN", "plain text", "htpasswd -nB", path]);
    let log = proxies.entry.log();
    // The gateway logs one warning, regardless of the number of workers and forwards.
    assert_eq!(log.matches("plain text").count(), 1, "{log}");
    assert!(!log.contains("sesame"), "{log}");
}

#[test]
fn a_changed_file_revokes_a_password_that_was_remembered() {
    let proxies = Proxies::with_users(&format!("alice:{SECRET}\n"));
    assert_eq!(proxies.socks5("alice", "secret"), TAKEN);
    assert_eq!(proxies.http("alice", "secret"), "200");
    // The new file has the same size as the previous file.
    proxies.replace_users(&format!("alice:{HORSE}\n"));
    assert_eq!(proxies.socks5("alice", "secret"), REFUSED);
    assert_eq!(proxies.http("alice", "secret"), "407");
    assert_eq!(proxies.socks5("alice", "correct-horse"), TAKEN);
    proxies.replace_users(&format!("bob:{HORSE}\n"));
    assert_eq!(proxies.socks5("alice", "correct-horse"), REFUSED);
    assert_eq!(proxies.http("bob", "correct-horse"), "200");
    // An invalid file has no effect, and the log names the invalid line.
    proxies.replace_users(&format!("alice:{SECRET}\nbob:$apr1$x$y\n"));
    assert_eq!(proxies.socks5("alice", "secret"), REFUSED);
    let line = format!(
        "{}:2: has a hash that is not supported",
        proxies.users.display()
    );
    proxies
        .entry
        .line(&["the previous users remain in force", &line]);
    assert_eq!(proxies.http("bob", "correct-horse"), "200");
}

/// Number of the process's threads that verify passwords.
fn verifying(gate: &Gate) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", gate.id())).unwrap();
    let name = |thread: &Path| std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
    threads
        .flatten()
        .filter(|thread| name(&thread.path()) == "passwords\n")
        .count()
}

#[test]
fn passwords_that_are_guessed_hold_up_no_stream_and_nobody_who_is_known() {
    // With the highest cost, each guess takes more than a second of CPU time, or 20 s without
    // optimization.
    let costly = SECRET.replace("$04$", "$14$");
    let proxies = Proxies::with_users(&format!("alice:{SECRET}\nbob:{costly}\n"));
    let stream = proxies.stream("alice", "secret");
    until("the thread of that verification has ended", || {
        verifying(&proxies.entry) == 0
    });
    let guesses: Vec<_> = (0..6)
        .map(|number| proxies.says("bob", &format!("guess {number}")))
        .collect();
    until("two guesses are verified", || {
        let count = verifying(&proxies.entry);
        assert!(count <= 2, "{count} verifications at the same time");
        count == 2
    });
    echo(&stream, &pattern(1, 1 << 20));
    // Connections to both workers.
    for _ in 0..4 {
        echo(&proxies.stream("alice", "secret"), &pattern(2, 1 << 10));
    }
    assert!(verifying(&proxies.entry) <= 2);
    // The last guess waits for the other guesses, so it has no answer yet when the checks above
    // end.
    let last = guesses.last().unwrap();
    last.set_nonblocking(true).unwrap();
    let early = last.peek(&mut [0; 1]).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::WouldBlock);
    last.set_nonblocking(false).unwrap();
    // Guesses that are not verified in time are also refused.
    for guess in &guesses {
        assert_eq!(read_exactly(guess), REFUSED);
    }
}

#[test]
fn a_gateway_does_not_start_with_a_hash_that_it_cannot_verify() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (users, config) = (at("users"), at("config.yaml"));
    let costly = SECRET.replace("$04$", "$15$");
    std::fs::write(&users, format!("alice:{SECRET}\nbob:{costly}\n")).unwrap();
    let (listen, carrier) = (free_port(), free_port());
    let text = format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: 127.0.0.1:{carrier}\nproxies:\n\
         - {{name: a, listen: '127.0.0.1:{listen}', protocol: SOCKS5, usersFile: {users}}}\n"
    );
    std::fs::write(&config, text).unwrap();
    let (status, log) = Gate::without_admin(&["run", "--config", &config]).wait_for_log();
    assert!(!status.success());
    let expected = format!("{users}:2: has a bcrypt hash of cost 15: 4 to 14 are supported");
    assert!(log.contains("MT0101") && log.contains(&expected), "{log}");
    assert!(!log.contains("$2y$"), "{log}");
}

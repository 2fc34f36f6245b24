//! Third-party programs that tests run, and servers for these programs.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::{free_port, target, until};

/// Runs `program` of the Debian package `package`. The test fails if the program is missing.
pub fn run(program: &str, package: &str, args: &[&str]) -> Output {
    output(Command::new(program).args(args), program, package)
}

/// Runs a prepared command to its end.
pub fn output(command: &mut Command, program: &str, package: &str) -> Output {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{program} is missing: apt-get install {package}")
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// The standard output of a program, which must have succeeded.
pub fn stdout(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{errors}", output.status);
    out
}

/// Runs curl with `args`. curl prints only errors, and the text of `-w`.
pub fn curl(args: &[&str]) -> Output {
    let common = [
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--noproxy",
        "",
    ];
    run("curl", "curl", &[&common, args].concat())
}

/// An HTTP server for the files below `root`, with one connection per request. `/echo` returns the
/// head and the body of the request unchanged.
pub fn http_server(root: &Path) -> SocketAddr {
    let (listener, address) = target();
    let root = root.to_owned();
    std::thread::spawn(move || serve(&listener, &root));
    address
}

fn serve(listener: &TcpListener, root: &Path) {
    for tcp in listener.incoming().flatten() {
        let root = root.to_owned();
        std::thread::spawn(move || drop(answer(tcp, &root)));
    }
}

fn answer(mut tcp: TcpStream, root: &Path) -> std::io::Result<()> {
    let mut reader = BufReader::new(tcp.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let content = if path == "/echo" {
        Ok([head.as_bytes(), &body].concat())
    } else {
        std::fs::read(file(root, path))
    };
    let (status, content) = match content {
        Ok(content) => ("200 OK", content),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    write!(
        tcp,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    )?;
    tcp.write_all(&content)
}

fn file(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// A process that is killed when the test ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An sshd for the test, and the options of its client.
pub fn sshd(folder: &Path) -> (Running, u16, Vec<String>) {
    let key = |name: &str| {
        let path = folder.join(name).to_str().unwrap().to_owned();
        let args = ["-q", "-t", "ed25519", "-N", "", "-f", &path];
        stdout(&run("ssh-keygen", "openssh-client", &args));
        path
    };
    let (host, user) = (key("host"), key("user"));
    std::fs::create_dir_all("/run/sshd")
        .expect("sshd needs the folder /run/sshd, which only root can create");
    let port = free_port();
    let listen = format!("ListenAddress=127.0.0.1:{port}");
    let keys = format!("AuthorizedKeysFile={user}.pub");
    let options = [
        &listen,
        &keys,
        "StrictModes=no",
        "UsePAM=no",
        "PidFile=none",
        "PermitRootLogin=yes",
    ];
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f", "/dev/null", "-h", &host]);
    options
        .iter()
        .for_each(|option| _ = command.args(["-o", option]));
    let server = command
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("sshd: {error}: apt-get install openssh-server"));
    until("sshd listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let client = [
        "-F",
        "/dev/null",
        "-i",
        &user,
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
    ];
    let mut client: Vec<_> = client.map(str::to_owned).into();
    client.push("UserKnownHostsFile=/dev/null".to_owned());
    (Running(server), port, client)
}

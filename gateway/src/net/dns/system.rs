//! The files of the system's resolver, resolv.conf(5) and hosts(5), and the rules that they set.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use resolv_conf::ScopedIp;

/// The limits of resolv.conf(5).
const SERVERS_MAX: usize = 3;
const NDOTS_MAX: u32 = 15;
const TIMEOUT_MAX: u32 = 30;
const ATTEMPTS_MAX: u32 = 5;
/// Maximum number of domains in the search list. Each domain may cost queries for each look-up.
const SEARCH_MAX: usize = 32;
/// A file that changed less than this time before it was read may change again without a new time
/// of change, because the clock of file systems is coarse.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The paths of the files.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) resolv_conf: PathBuf,
    pub(super) hosts: PathBuf,
}

/// The version of a file; `None`: the file does not exist, or has changed too recently for its
/// version to be known.
type Version = Option<[i64; 6]>;

/// The configuration of the system's resolver.
#[derive(Debug)]
pub(super) struct System {
    pub(super) servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
    timeout: Duration,
    pub(super) attempts: u32,
    rotate: bool,
    asks_top_level: bool,
    /// Whether queries use only TCP.
    pub(super) over_tcp: bool,
    pub(super) asks_ipv6: bool,
    pub(super) edns: bool,
    hosts: BTreeMap<String, Vec<IpAddr>>,
    versions: [Version; 2],
    /// Number of queries so far, for `rotate`.
    queries: AtomicUsize,
}

impl Files {
    fn versions(&self) -> [Version; 2] {
        [&self.resolv_conf, &self.hosts].map(|path| version(path))
    }

    /// Reads the files. A file that does not exist counts as empty. `port` is the port of the
    /// servers.
    pub(super) fn read(&self, port: u16) -> System {
        let versions = self.versions();
        let mut text = std::fs::read(&self.resolv_conf).unwrap_or_default();
        // Variables of the environment override the file.
        for (line, variable) in [("search", "LOCALDOMAIN"), ("options", "RES_OPTIONS")] {
            if let Ok(value) = std::env::var(variable) {
                text.extend(format!("\n{line} {value}\n").bytes());
            }
        }
        let hosts = std::fs::read(&self.hosts).unwrap_or_default();
        System::new(&text, &String::from_utf8_lossy(&hosts), port, versions)
    }
}

fn version(path: &Path) -> Version {
    let file = std::fs::metadata(path).ok()?;
    let age = SystemTime::now().duration_since(file.modified().ok()?);
    let id = [file.dev(), file.ino(), file.len()].map(u64::cast_signed);
    let times = [file.mtime(), file.mtime_nsec(), file.ctime()];
    let [device, inode, length] = id;
    let [seconds, nanoseconds, changed] = times;
    age.is_ok_and(|age| age > SETTLED_AFTER).then_some([
        device,
        inode,
        length,
        seconds,
        nanoseconds,
        changed,
    ])
}

impl System {
    fn new(resolv_conf: &[u8], hosts: &str, port: u16, versions: [Version; 2]) -> Self {
        // The C library ignores the lines and options that it does not know, too.
        let (parsed, _) = resolv_conf::Config::parse_with_errors(resolv_conf);
        let servers = parsed
            .nameservers
            .iter()
            .filter_map(|server| at(server, port));
        let mut servers: Vec<_> = servers.take(SERVERS_MAX).collect();
        if servers.is_empty() {
            servers.push((Ipv4Addr::LOCALHOST, port).into());
        }
        let configured = parsed.get_last_search_or_domain().cloned();
        let mut search: Vec<_> = configured.collect();
        if parsed.get_search().is_none() && parsed.get_domain().is_none() {
            search.extend(domain_of_host());
        }
        search.truncate(SEARCH_MAX);
        let seconds = parsed.timeout.clamp(1, TIMEOUT_MAX);
        Self {
            servers,
            search,
            ndots: parsed.ndots.min(NDOTS_MAX) as usize,
            timeout: Duration::from_secs(seconds.into()),
            attempts: parsed.attempts.clamp(1, ATTEMPTS_MAX),
            rotate: parsed.rotate,
            asks_top_level: !parsed.no_tld_query,
            over_tcp: parsed.use_vc,
            asks_ipv6: !parsed.no_aaaa,
            edns: parsed.edns0,
            hosts: read_hosts(hosts),
            versions,
            queries: AtomicUsize::new(0),
        }
    }

    /// Whether the files are still those that were read.
    pub(super) fn is_current(&self, files: &Files) -> bool {
        let now = files.versions();
        // A file without a known version is read again, unless it does not exist.
        let paths = [&files.resolv_conf, &files.hosts];
        std::iter::zip(paths, std::iter::zip(self.versions, now))
            .all(|(path, (before, now))| before == now && (now.is_some() || !path.exists()))
    }

    /// Whether `other` asks the same servers, so that the answers of one are valid for the other.
    pub(super) fn asks_as(&self, other: &Self) -> bool {
        self.servers == other.servers
    }

    /// The addresses of `host` in hosts(5).
    pub(super) fn in_hosts(&self, host: &str) -> Option<&[IpAddr]> {
        self.hosts.get(&key(host)).map(Vec::as_slice)
    }

    /// The absolute names to look up for `host`, in order, without the final dot.
    pub(super) fn candidates(&self, host: &str) -> Vec<String> {
        let name = key(host);
        if host.ends_with('.') {
            return vec![name];
        }
        let dots = name.matches('.').count();
        let completed = self.search.iter().map(|domain| {
            let domain = key(domain);
            match domain.is_empty() {
                true => name.clone(),
                false => format!("{name}.{domain}"),
            }
        });
        let mut names = Vec::new();
        if dots >= self.ndots {
            names.push(name.clone());
        }
        names.extend(completed);
        if dots > 0 || self.asks_top_level || names.is_empty() {
            names.push(name);
        }
        let mut seen = Vec::new();
        names.retain(|name| {
            let is_new = !seen.contains(name);
            seen.extend(is_new.then(|| name.clone()));
            is_new
        });
        names
    }

    /// The servers in the order in which a query uses them.
    pub(super) fn in_turn(&self) -> Vec<SocketAddr> {
        let mut servers = self.servers.clone();
        if self.rotate {
            let first = self.queries.fetch_add(1, Relaxed) % servers.len();
            servers.rotate_left(first);
        }
        servers
    }

    /// How long a query waits for the server with the number `nth`, as in the C library.
    pub(super) fn patience(&self, nth: u32) -> Duration {
        let seconds = self.timeout.as_secs() << nth.min(8);
        let shared = if nth == 0 {
            1
        } else {
            self.servers.len() as u64
        };
        Duration::from_secs((seconds / shared).max(1))
    }
}

/// A name in lower case, without the final dot.
pub(super) fn key(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn at(server: &ScopedIp, port: u16) -> Option<SocketAddr> {
    match server {
        ScopedIp::V4(v4) => Some((*v4, port).into()),
        ScopedIp::V6(v6, None) => Some((*v6, port).into()),
        ScopedIp::V6(v6, Some(scope)) => numeric(&format!("{v6}%{scope}"), port).ok()?,
    }
}

/// Converts an address in standard notation. An IPv6 address may have a scope. `None`: the text is
/// a name.
///
/// # Errors
/// The interface of the scope does not exist.
pub(super) fn numeric(host: &str, port: u16) -> io::Result<Option<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(Some((address, port).into()));
    }
    let is_scoped = host
        .split_once('%')
        .is_some_and(|(address, _)| address.parse::<std::net::Ipv6Addr>().is_ok());
    match is_scoped {
        // The C library converts a number without a look-up.
        true => Ok((host, port).to_socket_addrs()?.next()),
        false => Ok(None),
    }
}

fn domain_of_host() -> Option<String> {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().ok()?;
    let (_, domain) = name.split_once('.')?;
    Some(domain.to_owned())
}

fn read_hosts(text: &str) -> BTreeMap<String, Vec<IpAddr>> {
    let mut hosts: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for line in text.lines() {
        let content = line.split('#').next().unwrap_or_default();
        let mut words = content.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else {
            continue;
        };
        for name in words {
            let addresses = hosts.entry(key(name)).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(resolv_conf: &str) -> System {
        System::new(resolv_conf.as_bytes(), "", 53, [None; 2])
    }

    const POD: &str = "search here.svc.cluster.local svc.cluster.local cluster.local\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";

    #[test]
    fn names_are_completed_as_the_c_library_completes_them() {
        let pod = system(POD);
        let all = [
            "here.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
        ];
        let completed = |name: &str| all.map(|domain| format!("{name}.{domain}")).to_vec();
        let last = |name: &str| [completed(name), vec![name.to_owned()]].concat();
        assert_eq!(pod.candidates("web"), last("web"));
        assert_eq!(pod.candidates("Web.shop"), last("web.shop"));
        assert_eq!(pod.candidates("web.shop."), ["web.shop"]);
        assert_eq!(pod.candidates("localhost."), ["localhost"]);
        let many = "a.b.c.d.e.example";
        let first = [vec![many.to_owned()], completed(many)].concat();
        assert_eq!(pod.candidates(many), first);
        let plain = system("search lan\n");
        assert_eq!(plain.candidates("web"), ["web.lan", "web"]);
        assert_eq!(plain.candidates("web.shop"), ["web.shop", "web.shop.lan"]);
        let no_top_level = system("search lan\noptions no-tld-query\n");
        assert_eq!(no_top_level.candidates("web"), ["web.lan"]);
        assert_eq!(system("search .\n").candidates("web"), ["web"]);
        assert_eq!(
            system("search a\ndomain b\n").candidates("web"),
            ["web.b", "web"]
        );
    }

    #[test]
    fn options_have_the_limits_and_defaults_of_the_c_library() {
        let many = system(
            "nameserver 10.0.0.1\nnameserver fd00::1\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n\
             options timeout:99 attempts:99 ndots:99 rotate use-vc no-aaaa edns0\n",
        );
        let servers = ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.3:53"];
        let servers = servers.map(|server| server.parse::<SocketAddr>().unwrap());
        assert_eq!(many.servers, servers);
        assert_eq!((many.attempts, many.ndots), (5, 15));
        assert_eq!([0, 1, 2].map(|n| many.patience(n).as_secs()), [30, 20, 40]);
        assert!(many.over_tcp && !many.asks_ipv6 && many.edns);
        let turns: Vec<_> = (0..4).map(|_| many.in_turn()[0]).collect();
        assert_eq!(turns, [servers[0], servers[1], servers[2], servers[0]]);
        let none = system("");
        assert_eq!(none.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((none.attempts, none.ndots), (2, 1));
        assert_eq!(none.patience(0).as_secs(), 5);
        assert_eq!(
            [(); 2].map(|()| none.in_turn()),
            [none.servers.clone(), none.servers]
        );
    }

    #[test]
    fn hosts_have_several_names_and_addresses() {
        let text = "10.0.0.1 one One.lan # comment two\n# 10.0.0.9 one\nfd00::1\tone\n10.0.0.1 one\nbad three\n";
        let system = System::new(b"", text, 53, [None; 2]);
        let [v4, v6] = ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap());
        assert_eq!(system.in_hosts("ONE."), Some(&[v4, v6][..]));
        assert_eq!(system.in_hosts("one.LAN"), Some(&[v4][..]));
        assert_eq!(system.in_hosts("two"), None);
        assert_eq!(system.in_hosts("three"), None);
    }

    #[test]
    fn numbers_are_no_names() {
        let read = |text: &str| numeric(text, 1).unwrap().map(|address| address.to_string());
        assert_eq!(read("10.0.0.1").unwrap(), "10.0.0.1:1");
        assert_eq!(read("fe80::1%lo").unwrap(), "[fe80::1%1]:1");
        assert_eq!((read("web"), read("a%b")), (None, None));
        assert!(numeric("fe80::1%no-such-link", 1).is_err());
    }
}

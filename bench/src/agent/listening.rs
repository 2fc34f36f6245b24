//! Whether a TCP port of this network namespace has a listener.

use std::fs;
use std::io;
use std::time::Duration;

/// Interval at which the kernel's tables are read.
const EVERY: Duration = Duration::from_millis(10);
/// The tables of IPv4 and IPv6 sockets, proc_pid_net(5).
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a listening socket in these tables, `TCP_LISTEN` of net/tcp_states.h.
const LISTEN: &str = "0A";

/// Waits until a process listens on `port`. iperf reports that it listens before it calls listen(2),
/// so until then the kernel refuses connections.
///
/// # Errors
/// The table of IPv4 sockets cannot be read.
pub(super) async fn until_listening(port: u16) -> io::Result<()> {
    let [ipv4, ipv6] = TABLES;
    // A kernel without IPv6 has no second table.
    while !has_listener(&fs::read_to_string(ipv4)?, port)
        && !has_listener(&fs::read_to_string(ipv6).unwrap_or_default(), port)
    {
        tokio::time::sleep(EVERY).await;
    }
    Ok(())
}

/// Whether a table contains a listening socket on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (address, _remote, state) = (words.next(), words.next(), words.next());
        address.is_some_and(|address| address.ends_with(&suffix)) && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_a_listening_socket_on_the_port_counts() {
        let table = "
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 24
   1: 0100007F:138A 0100007F:1389 01 00000000:00000000 00:00000000 00000000     0        0 25
";
        assert!(has_listener(table, 0x1389));
        assert!(!has_listener(table, 0x138A));
        assert!(!has_listener(table, 0x0389));
        assert!(!has_listener("", 0x1389));
    }

    #[tokio::test]
    async fn a_listener_of_this_process_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            until_listening(port).await.unwrap();
        }
    }
}

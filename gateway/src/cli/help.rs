//! What `--help` of muxgate and of each subcommand shows at its end. A test types the command lines.

/// The first steps.
pub(super) const MUXGATE: &str = "\
Examples:
  On the far side, allow one target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  Here, forward a local port to it:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  Encrypted, each side known to the other by its public key, which keygen prints:
    muxgate keygen exit.key && muxgate keygen entry.key
    muxgate exit --security noise --noise-key exit.key --peer ENTRY= \\
      --listen 0.0.0.0:64000 --allow db.internal:5432
    muxgate entry --security noise --noise-key entry.key --peer EXIT= \\
      --connect far.example.com:64000 --forward 5432:db.internal:5432
  Check a file, and run it:
    muxgate check --config far.yaml
    muxgate run --config far.yaml
`muxgate SUBCOMMAND --help` has more examples.

Exit status: 0 success, 1 failure, 2 the configuration or the command line cannot be used.";

/// `muxgate run`.
pub(super) const RUN: &str = "\
Examples:
  A gateway from a file:
    muxgate run --config far.yaml
  With a log for programs, and without the line of each closed stream:
    RUST_LOG=info,muxgate::streams=warn muxgate run --config far.yaml --log-format json";

/// `muxgate check`.
pub(super) const CHECK: &str = "\
Examples:
  Before a gateway reads the file; status 2 if it cannot be used:
    muxgate check --config far.yaml";

/// `muxgate exit`.
pub(super) const EXIT: &str = "\
Examples:
  Allow one target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  Or a whole domain but for its mail, on some ports:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow '*.internal:1024-9999' \\
      --deny mail.internal
  Encrypted, the entry known by its public key:
    muxgate exit --security noise --noise-key exit.key --peer ENTRY= \\
      --listen 0.0.0.0:64000 --allow db.internal:5432
  With a certificate on the exit alone, which accepts every entry, by WebSocket:
    muxgate exit --security tls --tls-certificate tls.crt --tls-key tls.key --allow-anonymous \\
      --listen wss://0.0.0.0:443/carrier --allow db.internal:5432
  Let the entry listen on port 8080 here:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow-listen 8080
  Over UDP, by KCP, where the path loses packets:
    muxgate exit --transport kcp --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  For those who have ssh alone (ssh -N -L 5432:db.internal:5432 -p 2222 far.example.com):
    muxgate exit --protocol ssh --ssh-host-key host_key --ssh-authorized-keys authorized_keys \\
      --listen 0.0.0.0:2222 --allow db.internal:5432
  Between two processes of one machine:
    muxgate exit --security none --listen unix:/run/muxgate.sock --allow db.internal:5432
  Where the entry cannot reach this host, both meet at a rendezvous:
    muxgate exit --security none --rendezvous meet.example.com:64004 --name db \\
      --secret-file exit.secret --allow db.internal:5432";

/// `muxgate entry`.
pub(super) const ENTRY: &str = "\
Examples:
  Forward a local port:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  The same for at most 100 connections at 200 Mbit/s in all; those idle for 15 minutes end:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432 --limit-streams 100 --limit-rate 200Mbit \\
      --idle-timeout 900
  Encrypted, the exit known by its public key:
    muxgate entry --security noise --noise-key entry.key --peer EXIT= \\
      --connect far.example.com:64000 --forward 5432:db.internal:5432
  By certificates, and through what lets only HTTP pass:
    muxgate entry --security mtls --tls-certificate tls.crt --tls-key tls.key --tls-ca ca.crt \\
      --peer exit.example.com --connect wss://far.example.com:443/carrier \\
      --forward 5432:db.internal:5432
  With a certificate on the exit alone, through a proxy:
    muxgate entry --security tls --proxy http://proxy.example.com:3128 \\
      --connect wss://far.example.com:443/carrier --forward 5432:db.internal:5432
  The other way round: 127.0.0.1:8080 of the exit forwards to port 3000 here; the exit must allow it:
    muxgate entry --security none --connect far.example.com:64000 \\
      --reverse 8080:localhost:3000
  Over UDP, by KCP, where the path loses packets:
    muxgate entry --transport kcp --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432
  To an sshd:
    muxgate entry --protocol ssh --ssh-user alice --ssh-key id_ed25519 --ssh-known-hosts known_hosts \\
      --connect far.example.com:22 --forward 5432:db.internal:5432
  Over ssh, which says who may come in; nothing runs on the far side before:
    muxgate entry --connect-command 'ssh far muxgate exit --stdio --allow db.internal:5432' \\
      --forward 5432:db.internal:5432
  Between two processes of one machine:
    muxgate entry --security none --connect unix:/run/muxgate.sock --forward 5432:db.internal:5432
  To an exit that cannot be reached; both meet at a rendezvous:
    muxgate entry --security none --rendezvous meet.example.com:64004 --name db \\
      --secret-file entry.secret --forward 5432:db.internal:5432
  With a jetsocat at the other end:
    muxgate entry --protocol jmux --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432
  Let clients here say where they want to go, by SOCKS5 (curl --socks5-hostname localhost:1080 URL), as an
  HTTP proxy (https_proxy=http://localhost:3128), or by either and SOCKS4 on one port; the exit has
  --allow 10.0.0.0/8:
    muxgate entry --security none --connect far.example.com:64000 --socks5 1080
    muxgate entry --security none --connect far.example.com:64000 --http-proxy 3128 \\
      --proxy-auth alice --proxy-password-file password
    muxgate entry --security none --connect far.example.com:64000 --auto 0.0.0.0:1080
  Take what iptables redirects (iptables -t nat -A OUTPUT -d 10.0.0.0/8 -p tcp -j REDIRECT --to-ports
  15001):
    muxgate entry --security none --connect far.example.com:64000 --transparent 15001
  IP packets between two hosts; root makes the interface, and user 65532 runs the gateway:
    muxgate tun create --owner 65532 --address 10.72.0.1/24 --route 10.20.0.0/16
    muxgate entry --security none --connect far.example.com:64000 --entry-cidr 10.72.0.0/24 \\
      --exit-cidr 10.20.0.0/16
  From and to Unix sockets:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward unix:/run/web.sock:web.internal:80 --forward 5432:unix:/run/postgresql/.s.PGSQL.5432";

/// `muxgate rendezvous`.
pub(super) const RENDEZVOUS: &str = "\
Examples:
  A rendezvous for the names and secrets of a file:
    muxgate rendezvous --listen 0.0.0.0:64004 --secrets /etc/muxgate/secrets
  An exit and an entry that meet there:
    muxgate exit --security none --rendezvous meet.example.com:64004 --name db \\
      --secret-file exit.secret --allow db.internal:5432
    muxgate entry --security none --rendezvous meet.example.com:64004 --name db \\
      --secret-file entry.secret --forward 5432:db.internal:5432";

/// `muxgate keygen`.
pub(super) const KEYGEN: &str = "\
Examples:
  A key for each side, for --security noise:
    muxgate keygen exit.key && muxgate keygen entry.key
  An authority and a certificate for each side, for --security mtls:
    muxgate keygen --tls certificates --exit far.example.com --entry laptop.example.com";

/// `muxgate completions`.
pub(super) const COMPLETIONS: &str = "\
Examples:
  For bash:
    muxgate completions bash > ~/.local/share/bash-completion/completions/muxgate";

/// `muxgate udp-buffers`.
pub(super) const UDP_BUFFERS: &str = "\
Examples:
  Whether the kernel's buffers suffice for QUIC, HTTP/3 and KCP; run it on each side:
    muxgate udp-buffers";

/// `muxgate tun create`.
pub(super) const TUN_CREATE: &str = "\
Examples:
  As root, for a gateway of user 65532; the other side has the network 10.20.0.0/16:
    muxgate tun create --owner 65532 --address 10.72.0.1/24 --route 10.20.0.0/16
  For hosts behind this one, too:
    muxgate tun create --address 10.72.0.1/24 --route 10.20.0.0/16 --forward --masquerade";

/// `muxgate tun delete`.
pub(super) const TUN_DELETE: &str = "\
Examples:
  The interface with its addresses and routes:
    muxgate tun delete";

//! The examples at the end of `--help` of muxgate and of each subcommand. A test parses the command
//! lines.

/// The first steps.
pub(super) const MUXGATE: &str = "\
Examples:
  On the host near the target, allow this target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  On your host, forward a local port to the target:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  Encrypted: each side lists the public key of the other side, which keygen prints (ENTRY_KEY is
  the line of entry.key that begins with mte1, EXIT_KEY the line of exit.key that begins with mtx1):
    muxgate keygen exit.key && muxgate keygen entry.key
    muxgate exit --key exit.key --peer ENTRY_KEY \\
      --listen 0.0.0.0:64000 --allow db.internal:5432
    muxgate entry --key entry.key --peer EXIT_KEY \\
      --connect far.example.com:64000 --forward 5432:db.internal:5432
  Check a configuration file, and run it:
    muxgate check --config far.yaml
    muxgate run --config far.yaml
`muxgate SUBCOMMAND --help` has more examples.

Exit status: 0 success, 1 failure, 2 the configuration or the command line cannot be used.";

/// `muxgate run`.
pub(super) const RUN: &str = "\
Examples:
  A gateway with a configuration file:
    muxgate run --config far.yaml
  With JSON logs, and without a line for each closed stream:
    RUST_LOG=info,muxgate::streams=warn muxgate run --config far.yaml --log-format json";

/// `muxgate check`.
pub(super) const CHECK: &str = "\
Examples:
  Check a file before a gateway reads it; exit status 2 if the file is invalid:
    muxgate check --config far.yaml
  Check on each side what the kernel's buffers permit:
    muxgate check";

/// `muxgate status`.
pub(super) const STATUS: &str = "\
Examples:
  The gateway of this host or pod, started with --admin 127.0.0.1:64001:
    muxgate status
  Another gateway, as JSON for a script:
    muxgate status --admin 10.0.0.7:64001 -o json
Exit status: 0 if the gateway answers, ready or not; otherwise 1.";

/// `muxgate exit`.
pub(super) const EXIT: &str = "\
Examples:
  Allow one target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  Allow a domain except its mail host, on a range of ports:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow '*.internal:1024-9999' \\
      --deny mail.internal
  Encrypted: the exit accepts only entries whose public keys it lists:
    muxgate exit --key exit.key --peer ENTRY_KEY \\
      --listen 0.0.0.0:64000 --allow db.internal:5432
  Over WebSocket, with a certificate for the exit only; the exit accepts every entry:
    muxgate exit --security tls --tls-certificate tls.crt --tls-key tls.key --allow-anonymous \\
      --listen wss://0.0.0.0:443/carrier --allow db.internal:5432
  Let entries listen on port 8080 of this host:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow-listen 8080
  Over UDP by KCP, for a path that loses packets:
    muxgate exit --transport KCP --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  For users who have only ssh (ssh -N -L 5432:db.internal:5432 -p 2222 far.example.com):
    muxgate exit --protocol SSH --ssh-host-key host_key --ssh-authorized-keys authorized_keys \\
      --listen 0.0.0.0:2222 --allow db.internal:5432
  Between two processes of one machine:
    muxgate exit --security none --listen unix:/run/muxgate.sock --allow db.internal:5432
  If the entry cannot reach this host, both connect to a rendezvous:
    muxgate exit --key exit.key --peer ENTRY_KEY --rendezvous meet.example.com:64004 \\
      --rendezvous-key RENDEZVOUS_KEY --allow db.internal:5432";

/// `muxgate entry`.
pub(super) const ENTRY: &str = "\
Examples:
  Forward a local port:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  At most 100 connections with 200 Mbit/s in total; idle connections end after 15 minutes:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432 --limit-streams 100 --limit-rate 200M \\
      --idle-timeout 900
  Encrypted: the entry verifies the public key of the exit:
    muxgate entry --key entry.key --peer EXIT_KEY \\
      --connect far.example.com:64000 --forward 5432:db.internal:5432
  With certificates, through a proxy that forwards only HTTP:
    muxgate entry --security certificates --tls-certificate tls.crt --tls-key tls.key --tls-ca ca.crt \\
      --peer exit.example.com --connect wss://far.example.com:443/carrier \\
      --forward 5432:db.internal:5432
  With a certificate for the exit only, through a forward proxy:
    muxgate entry --security tls --proxy http://proxy.example.com:3128 \\
      --connect wss://far.example.com:443/carrier --forward 5432:db.internal:5432
  Reverse: the exit listens on 127.0.0.1:8080, and the entry forwards to port 3000 of this host:
    muxgate entry --security none --connect far.example.com:64000 \\
      --reverse 8080:localhost:3000
  Over UDP by KCP, for a path that loses packets:
    muxgate entry --transport KCP --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432
  To an sshd:
    muxgate entry --protocol SSH --ssh-user alice --ssh-key id_ed25519 \\
      --ssh-known-hosts known_hosts --connect far.example.com:22 \\
      --forward 5432:db.internal:5432
  Over the standard input and output of ssh, which authenticates the user and starts the exit:
    muxgate entry --connect-command 'ssh far muxgate exit --stdio --allow db.internal:5432' \\
      --forward 5432:db.internal:5432
  Between two processes of one machine:
    muxgate entry --security none --connect unix:/run/muxgate.sock --forward 5432:db.internal:5432
  If this host cannot reach the exit, both connect to a rendezvous:
    muxgate entry --key entry.key --peer EXIT_KEY --rendezvous meet.example.com:64004 \\
      --rendezvous-key RENDEZVOUS_KEY --forward 5432:db.internal:5432
  To a jetsocat:
    muxgate entry --protocol JMUX --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432
  Clients name their target by SOCKS5 (curl --socks5-hostname localhost:1080 URL), by HTTP
  (https_proxy=http://localhost:3128), or by SOCKS4, SOCKS5 or HTTP on one port; the exit has
  --allow 10.0.0.0/8:
    muxgate entry --security none --connect far.example.com:64000 --socks5 1080
    muxgate entry --security none --connect far.example.com:64000 --http-proxy 3128 \\
      --proxy-auth alice --proxy-password-file password
    muxgate entry --security none --connect far.example.com:64000 --auto 0.0.0.0:1080
  Connections that iptables redirects (iptables -t nat -A OUTPUT -d 10.0.0.0/8 -p tcp \\
  -j REDIRECT --to-ports 15001):
    muxgate entry --security none --connect far.example.com:64000 --transparent 15001
  IP packets between two hosts: root creates the interface, user 65532 runs the gateway:
    muxgate tun create --owner 65532 --address 10.72.0.1/24 --route 10.20.0.0/16
    muxgate entry --security none --connect far.example.com:64000 --entry-cidr 10.72.0.0/24 \\
      --exit-cidr 10.20.0.0/16
  From and to Unix sockets:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward unix:/run/web.sock:web.internal:80 --forward 5432:unix:/run/postgresql/.s.PGSQL.5432";

/// `muxgate rendezvous`.
pub(super) const RENDEZVOUS: &str = "\
Examples:
  A rendezvous for an exit and an entry:
    muxgate rendezvous --listen 0.0.0.0:64004 --key rendezvous.key --member EXIT_KEY --member ENTRY_KEY
  For the members in a file:
    muxgate rendezvous --listen 0.0.0.0:64004 --key rendezvous.key --members /etc/muxgate/members
  An exit and an entry that connect to this rendezvous:
    muxgate exit --key exit.key --peer ENTRY_KEY --rendezvous meet.example.com:64004 \\
      --rendezvous-key RENDEZVOUS_KEY --allow db.internal:5432
    muxgate entry --key entry.key --peer EXIT_KEY --rendezvous meet.example.com:64004 \\
      --rendezvous-key RENDEZVOUS_KEY --forward 5432:db.internal:5432";

/// `muxgate keygen`.
pub(super) const KEYGEN: &str = "\
Examples:
  A key for each side. Each command prints mte1..., the public key for an entry, mtx1..., the public
  key for an exit, and mtr1..., the public key for a rendezvous:
    muxgate keygen exit.key && muxgate keygen entry.key
  The public keys of an existing file:
    muxgate keygen --show exit.key
  A certificate authority and a certificate for each side, for --security certificates:
    muxgate keygen --tls certificates --exit far.example.com --entry laptop.example.com";

/// `muxgate completions`.
pub(super) const COMPLETIONS: &str = "\
Examples:
  For bash:
    muxgate completions bash > ~/.local/share/bash-completion/completions/muxgate";

/// `muxgate udp-buffers`.
pub(super) const UDP_BUFFERS: &str = "\
Examples:
  Check on each side that the kernel's UDP buffers suffice for QUIC, HTTP/3 and KCP:
    muxgate udp-buffers";

/// `muxgate tun create`.
pub(super) const TUN_CREATE: &str = "\
Examples:
  As root, for a gateway of user 65532, with a route to the other side's network 10.20.0.0/16:
    muxgate tun create --owner 65532 --address 10.72.0.1/24 --route 10.20.0.0/16
  The same interface, also for other hosts, whose packets this host forwards:
    muxgate tun create --address 10.72.0.1/24 --route 10.20.0.0/16 --forward --masquerade in";

/// `muxgate tun delete`.
pub(super) const TUN_DELETE: &str = "\
Examples:
  Delete the interface with its addresses and routes:
    muxgate tun delete";

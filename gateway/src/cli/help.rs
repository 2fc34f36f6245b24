//! What `--help` shows at its end.

/// A command line of each mode, which a test types.
pub(super) const EXAMPLES: &str = "\
Examples:
  On the far side, allow one target:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow db.internal:5432
  Or a whole domain but for its mail, on some ports:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow '*.internal:1024-9999' \\
      --deny mail.internal
  Here, forward a local port to it:
    muxgate entry --security none --connect far.example.com:64000 --forward 5432:db.internal:5432
  The same for at most 100 connections at 200 Mbit/s in all; those idle for 15 minutes end:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432 --limit-streams 100 --limit-rate 200Mbit \\
      --idle-timeout 900
  Encrypted, each side known to the other by its public key, which keygen prints:
    muxgate keygen exit.key && muxgate keygen entry.key
    muxgate exit --security noise --noise-key exit.key --peer ENTRY= \\
      --listen 0.0.0.0:64000 --allow db.internal:5432
    muxgate entry --security noise --noise-key entry.key --peer EXIT= \\
      --connect far.example.com:64000 --forward 5432:db.internal:5432
  The same by certificates (here the entry), and through what lets only HTTP pass:
    muxgate entry --security mtls --tls-certificate tls.crt --tls-key tls.key --tls-ca ca.crt \\
      --peer exit.example.com --connect wss://far.example.com:443/carrier \\
      --forward 5432:db.internal:5432
  The other way round: 127.0.0.1:8080 of the exit forwards to port 3000 here; the exit must allow it:
    muxgate exit --security none --listen 0.0.0.0:64000 --allow-listen 8080
    muxgate entry --security none --connect far.example.com:64000 \\
      --reverse 8080:localhost:3000
  Over UDP, by KCP, where the path loses packets:
    muxgate exit --transport kcp --security none --listen 0.0.0.0:64000 --allow db.internal:5432
    muxgate entry --transport kcp --security none --connect far.example.com:64000 \\
      --forward 5432:db.internal:5432
  Whether the kernel's buffers of UDP sockets suffice for that, on each side:
    muxgate udp-buffers
  For those who have ssh alone (ssh -N -L 5432:db.internal:5432 -p 2222 far.example.com), and to an sshd:
    muxgate exit --protocol ssh --ssh-host-key host_key --ssh-authorized-keys authorized_keys \\
      --listen 0.0.0.0:2222 --allow db.internal:5432
    muxgate entry --protocol ssh --ssh-user alice --ssh-key id_ed25519 --ssh-known-hosts known_hosts \\
      --connect far.example.com:22 --forward 5432:db.internal:5432
  Over ssh, which says who may come in; nothing runs on the far side before:
    muxgate entry --connect-command 'ssh far muxgate exit --stdio --allow db.internal:5432' \\
      --forward 5432:db.internal:5432
  Between two processes of one machine:
    muxgate exit --security none --listen unix:/run/muxgate.sock --allow db.internal:5432
    muxgate entry --security none --connect unix:/run/muxgate.sock --forward 5432:db.internal:5432
  With a certificate on the exit alone, which accepts every entry; here through a proxy:
    muxgate exit --security tls --tls-certificate tls.crt --tls-key tls.key --allow-anonymous \\
      --listen wss://0.0.0.0:443/carrier --allow db.internal:5432
    muxgate entry --security tls --proxy http://proxy.example.com:3128 \\
      --connect wss://far.example.com:443/carrier --forward 5432:db.internal:5432
  Certificates for both sides (--security mtls), and completions for a shell:
    muxgate keygen --tls certificates --exit far.example.com --entry laptop.example.com
    muxgate completions bash > ~/.local/share/bash-completion/completions/muxgate
  What a file says:
    muxgate run --config far.yaml
  Two sides that cannot reach each other meet at a third, which both can:
    muxgate rendezvous --listen 0.0.0.0:64004 --secrets /etc/muxgate/secrets
    muxgate exit --security none --rendezvous meet.example.com:64004 --name db \\
      --secret-file exit.secret --allow db.internal:5432
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
  IP packets between two hosts, here the entry; root makes the interface, and user 65532 runs the gateway:
    muxgate tun create --owner 65532 --address 10.72.0.1/24 --route 10.20.0.0/16
    muxgate entry --security none --connect far.example.com:64000 --entry-cidr 10.72.0.0/24 \\
      --exit-cidr 10.20.0.0/16
  From and to Unix sockets:
    muxgate entry --security none --connect far.example.com:64000 \\
      --forward unix:/run/web.sock:web.internal:80 --forward 5432:unix:/run/postgresql/.s.PGSQL.5432";

# through.pl PROTOCOL HOST PORT USER PASSWORD TARGET TARGET_PORT: connects to the target through a proxy (socks5,
# connect). Prints the proxy's answer: `method N`, `user N`, `reply N` of SOCKS5, or `status N` of HTTP. After a
# positive answer it sends a line and prints the target's answer. USER may be empty.
use strict;
use warnings;
use IO::Socket::INET;

my ($protocol, $host, $port, $user, $password, $target, $target_port) = @ARGV;
my $proxy = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port) or die "cannot connect to $host:$port: $!\n";
$proxy->autoflush(1);
local $SIG{ALRM} = sub { die "no answer within 30 s\n" };
alarm 30;

sub taken {
    my $bytes = '';
    while (length $bytes < $_[0]) {
        sysread($proxy, $bytes, $_[0] - length $bytes, length $bytes) or die "the proxy ends the connection\n";
    }
    return $bytes;
}

sub base64 {
    my $bits = unpack 'B*', $_[0];
    $bits .= '0' x (-length($bits) % 6);
    my $text = join '', map { ('A' .. 'Z', 'a' .. 'z', 0 .. 9, '+', '/')[oct "0b$_"] } $bits =~ /.{6}/g;
    return $text . '=' x (-length($text) % 4);
}

sub socks5 {
    syswrite $proxy, $user eq '' ? "\5\1\0" : "\5\1\2";
    my (undef, $method) = unpack 'CC', taken(2);
    return "method $method" if $method == 0xff;
    if ($method == 2) {
        syswrite $proxy, pack 'C C/a C/a', 1, $user, $password;
        my (undef, $known) = unpack 'CC', taken(2);
        return "user $known" if $known;
    }
    syswrite $proxy, pack 'CCCC C/a n', 5, 1, 0, 3, $target, $target_port;
    my (undef, $reply, undef, $type) = unpack 'C4', taken(4);
    taken($type == 1 ? 6 : $type == 4 ? 18 : 2 + ord taken(1));
    return "reply $reply";
}

sub connect_method {
    my $who = $user eq '' ? '' : 'Proxy-Authorization: Basic ' . base64("$user:$password") . "\r\n";
    syswrite $proxy, "CONNECT $target:$target_port HTTP/1.1\r\nHost: $target:$target_port\r\n$who\r\n";
    my $head = '';
    $head .= taken(1) until $head =~ /\r\n\r\n$/;
    my ($status) = $head =~ m{^HTTP/1\.\d (\d+)} or die "not an answer of HTTP: $head\n";
    return "status $status";
}

my $answer = $protocol eq 'socks5' ? socks5() : connect_method();
print "$answer\n";
if ($answer eq 'reply 0' or $answer eq 'status 200') {
    syswrite $proxy, "hello\n";
    shutdown $proxy, 1;
    print while <$proxy>;
}

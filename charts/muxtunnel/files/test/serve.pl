# serve.pl PORT COMMAND...: runs COMMAND for each connection, with the connection as stdin and stdout.
use strict;
use warnings;
use IO::Socket::IP;

my $port = shift @ARGV;
$SIG{CHLD} = 'IGNORE';
my @listen = (LocalPort => $port, Listen => 64, ReuseAddr => 1);
# Listens on IPv6 and IPv4, or only on IPv4 if the kernel has no IPv6.
my $listener = IO::Socket::IP->new(LocalHost => '::', V6Only => 0, @listen)
    || IO::Socket::IP->new(LocalHost => '0.0.0.0', @listen)
    or die "cannot listen on port $port: $!\n";
while (1) {
    my $peer = $listener->accept or next;
    next if fork;
    open STDIN, '<&', $peer or die "cannot use the connection as input: $!\n";
    open STDOUT, '>&', $peer or die "cannot use the connection as output: $!\n";
    close $peer;
    close $listener;
    exec @ARGV or die "cannot run @ARGV: $!\n";
}

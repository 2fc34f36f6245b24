# echo.pl PORT: sends back what comes in, on each connection.
use strict;
use warnings;
use IO::Socket::INET;

my $port = shift @ARGV;
$SIG{CHLD} = 'IGNORE';
my $listener = IO::Socket::INET->new(LocalPort => $port, Listen => 64, ReuseAddr => 1)
    or die "cannot listen on port $port: $!\n";
while (1) {
    my $peer = $listener->accept or next;
    next if fork;
    open STDIN, '<&', $peer or die "cannot use the connection as input: $!\n";
    open STDOUT, '>&', $peer or die "cannot use the connection as output: $!\n";
    close $peer;
    close $listener;
    exec 'cat' or die "cannot run cat: $!\n";
}

# send.pl HOST PORT: sends its input, ends the sending half of the connection, and prints the complete answer.
use strict;
use warnings;
use IO::Socket::IP;

my ($host, $port) = @ARGV;
my $peer = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port) or die "cannot connect to $host:$port: $!\n";
while (1) {
    my $length = sysread STDIN, my $bytes, 1 << 20;
    die "cannot read the input: $!\n" unless defined $length;
    last if $length == 0;
    for (my $sent = 0; $sent < $length;) {
        my $more = syswrite $peer, $bytes, $length - $sent, $sent;
        die "cannot send: $!\n" unless defined $more;
        $sent += $more;
    }
}
shutdown $peer, 1 or die "cannot end the sending half: $!\n";
while (1) {
    my $length = sysread $peer, my $bytes, 1 << 16;
    die "cannot receive: $!\n" unless defined $length;
    last if $length == 0;
    print $bytes;
}

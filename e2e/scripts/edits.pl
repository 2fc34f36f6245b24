# edits.pl opens HOST PORT...: waits for each port in turn until it returns an echo. Prints "open MILLISECONDS".
# edits.pl ends HOST PORT COUNT: COUNT times opens a stream to an echo server, prints "open MILLISECONDS", waits until the
# stream ends, and prints "end MILLISECONDS". The milliseconds since 1970 are those of the node.
use strict;
use warnings;
use IO::Select;
use IO::Socket::IP;

$| = 1;
$SIG{PIPE} = 'IGNORE';
my ($mode, $host, @rest) = @ARGV;

# The image has no module with a time in milliseconds.
sub stamp { print "$_[0] ", `date +%s%3N` }

# A stream that has returned an echo. A Service without the port does not answer, so an attempt takes at most 0.1 s.
sub echoed {
    my ($port) = @_;
    while (1) {
        my $peer = IO::Socket::IP->new(PeerHost => $host, PeerPort => $port, Timeout => 0.1);
        if ($peer && syswrite($peer, 'x') && IO::Select->new($peer)->can_read(1) && sysread($peer, my $byte, 1)) {
            return $peer;
        }
        select undef, undef, undef, 0.02;
    }
}

if ($mode eq 'opens') {
    for my $port (@rest) {
        echoed($port);
        stamp('open');
    }
} else {
    my ($port, $count) = @rest;
    for (1 .. $count) {
        my $peer = echoed($port);
        stamp('open');
        # Returns at an end of file and at a reset.
        sysread $peer, my $byte, 1;
        stamp('end');
    }
}

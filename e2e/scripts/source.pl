# source.pl: reads a header of the PROXY protocol, version 2, from its input, and prints its source: `client A:P`,
# `nobody` (command LOCAL), or `no header`.
use strict;
use warnings;
use Socket qw(AF_INET AF_INET6 inet_ntop);

binmode STDIN;
my $length_read = read STDIN, my($head), 16;
if ($length_read != 16) { print "no header\n"; exit }
my ($signature, $command, $family, $length) = unpack 'a12 C C n', $head;
if ($signature ne "\r\n\r\n\0\r\nQUIT\n") { print "no header\n"; exit }
read STDIN, my($body), $length;
if ($command == 0x20) { print "nobody\n"; exit }
my ($type, $bytes) = $family == 0x11 ? (AF_INET, 4) : (AF_INET6, 16);
printf "client %s:%d\n", inet_ntop($type, substr $body, 0, $bytes), unpack 'n', substr $body, 2 * $bytes, 2;

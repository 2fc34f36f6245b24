# packets.pl serve ADDRESS: echoes TCP and UDP on port 7777 of ADDRESS, and prints `serving` when it is ready.
# packets.pl reach ADDRESS: sends to ADDRESS by TCP, UDP and ICMP, and prints `ok` or the error for each.
# packets.pl gap ADDRESS SECONDS: pings ADDRESS every 20 ms. Prints the longest time between two answers in milliseconds, the
# number of pings and of answers, and the time since the last answer in milliseconds.
# All commands need only Perl's base package.
use strict;
use warnings;
use POSIX ();
use Socket qw(:DEFAULT SHUT_WR);
use constant {PORT => 7777, IPPROTO_ICMP => 1, TCP_BYTES => 1 << 20, WAIT => 5};

my ($mode, $address, $seconds) = @ARGV;
my $place = sockaddr_in(PORT, inet_aton($address));
$| = 1;
my %modes = (serve => \&serve, reach => \&reach, gap => \&gap);
$modes{$mode}->();

sub serve {
  my ($udp, $tcp);
  socket($udp, PF_INET, SOCK_DGRAM, 0) && bind($udp, $place) || die "UDP: $!\n";
  socket($tcp, PF_INET, SOCK_STREAM, 0) || die "TCP: $!\n";
  setsockopt($tcp, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($tcp, $place) && listen($tcp, 16) || die "TCP: $!\n";
  $SIG{CHLD} = 'IGNORE';
  print "serving\n";
  if (!fork) {
    while (defined(my $sender = recv $udp, my $datagram, 65536, 0)) { send $udp, $datagram, 0, $sender }
    exit;
  }
  while (accept my $client, $tcp) {
    next if fork;
    while (sysread $client, my $bytes, 65536) { write_all($client, $bytes) }
    exit;
  }
}

sub reach {
  for (['tcp', \&tcp], ['udp', \&udp], ['icmp', \&icmp]) {
    my ($name, $try) = @$_;
    my $why = eval { local $SIG{ALRM} = sub { die "no answer\n" }; alarm WAIT; $try->(); alarm 0; "ok\n" } || $@;
    print "$name $why";
  }
}

sub connected {
  my ($type, $protocol) = @_;
  my $socket;
  socket($socket, PF_INET, $type, $protocol) && connect($socket, $place) || die "$!\n";
  return $socket;
}

sub tcp {
  my $socket = connected(SOCK_STREAM, 0);
  my $sent = join '', map { pack 'N', $_ * 2654435761 % 4294967296 } 1 .. TCP_BYTES / 4;
  if (!fork) { write_all($socket, $sent); shutdown $socket, SHUT_WR; exit }
  my $received = '';
  while (sysread $socket, my $bytes, 65536) { $received .= $bytes }
  $received eq $sent || die 'other bytes: ' . length($received) . "\n";
}

sub udp {
  my $socket = connected(SOCK_DGRAM, 0);
  my $sent = 'datagram' x 175;
  answered($socket, $sent) eq $sent || die "other bytes\n";
}

# Sends an echo request (RFC 792) through an unprivileged socket. The kernel sets identifier and checksum.
sub icmp {
  my $socket = connected(SOCK_DGRAM, IPPROTO_ICMP);
  my ($type, undef, undef, undef, undef, $payload) = unpack 'C C n n n a*', answered($socket, pack 'C C n n n a*', 8, 0, 0, 0, 1, 'payload');
  $type == 0 && $payload eq 'payload' || die "type $type\n";
}

sub gap {
  my $socket = connected(SOCK_DGRAM, IPPROTO_ICMP);
  my ($longest, $sent, $answered) = (0, 0, 0);
  my $next = my $last = now_ms();
  my $end = $next + 1000 * $seconds;
  while ($next < $end) {
    send $socket, pack('C C n n n a*', 8, 0, 0, 0, ++$sent & 0xffff, 'payload'), 0;
    $next += 20;
    while ((my $left = $next - now_ms()) > 0) {
      my $ready = '';
      vec($ready, fileno $socket, 1) = 1;
      next unless select $ready, undef, undef, $left / 1000;
      # An ICMP error of the path is not an answer.
      next unless defined recv $socket, my $answer, 65536, 0;
      my $now = now_ms();
      $longest = $now - $last if $now - $last > $longest;
      ($last, $answered) = ($now, $answered + 1);
    }
  }
  printf "%d %d %d %d\n", $longest, $sent, $answered, now_ms() - $last;
}

# Milliseconds since an arbitrary time, in steps of 10.
sub now_ms {
  my ($ticks) = POSIX::times();
  return $ticks * 1000 / POSIX::sysconf(&POSIX::_SC_CLK_TCK);
}

# Sends a datagram once a second until an answer arrives. Returns the answer.
sub answered {
  my ($socket, $datagram) = @_;
  for (1 .. WAIT) {
    send $socket, $datagram, 0;
    my $ready = '';
    vec($ready, fileno $socket, 1) = 1;
    next unless select $ready, undef, undef, 1;
    defined recv $socket, my $answer, 65536, 0 or die "$!\n";
    return $answer;
  }
  die "no answer\n";
}

sub write_all {
  my ($socket, $bytes) = @_;
  while (length $bytes) {
    my $written = syswrite $socket, $bytes;
    return unless $written;
    substr $bytes, 0, $written, '';
  }
}

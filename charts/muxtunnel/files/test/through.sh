# shellcheck shell=bash
# through.sh HOST PORT BYTES: sends random bytes through a tunnel to an echo server, and compares the bytes that come back.
set -euo pipefail
host=$1 port=$2 bytes=$3
# Returns whether as many bytes came back as were sent.
exchange() (
  exec 3<>"/dev/tcp/$host/$port" || exit 1
  cat /tmp/sent >&3 &
  timeout 60 head -c "$bytes" <&3 >/tmp/received
  [ "$(wc -c </tmp/received)" = "$bytes" ]
)
head -c "$bytes" /dev/urandom >/tmp/sent
# The gateways and the echo server start at the same time as this test. So the first connections may be refused, and the
# entry may accept a connection before the exit reaches the echo server.
until exchange 2>/dev/null; do
  [ $SECONDS -lt 150 ] || { echo "$host:$port does not return all bytes after $SECONDS s: run kubectl describe muxtunnel"; exit 1; }
  sleep 1
done
for file in sent received; do echo "$file $(wc -c </tmp/$file) bytes, SHA-256 $(sha256sum </tmp/$file | cut -d' ' -f1)"; done
cmp /tmp/sent /tmp/received

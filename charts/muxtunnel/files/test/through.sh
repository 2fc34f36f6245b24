# shellcheck shell=bash
# through.sh HOST PORT BYTES: sends random bytes through a tunnel to an echo server, and compares the bytes that come back.
set -euo pipefail
host=$1 port=$2 bytes=$3
# The gateways start at the same time as this test, so the first connections may fail.
until (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; do
  [ $SECONDS -lt 150 ] || { echo "$host:$port does not accept a connection after $SECONDS s: run kubectl describe muxtunnel"; exit 1; }
  sleep 1
done
head -c "$bytes" /dev/urandom >/tmp/sent
exec 3<>"/dev/tcp/$host/$port"
cat /tmp/sent >&3 &
timeout 60 head -c "$bytes" <&3 >/tmp/received || { echo "not all bytes came back through the tunnel within 60 s"; exit 1; }
wait
for file in sent received; do echo "$file $(wc -c </tmp/$file) bytes, SHA-256 $(sha256sum </tmp/$file | cut -d' ' -f1)"; done
cmp /tmp/sent /tmp/received

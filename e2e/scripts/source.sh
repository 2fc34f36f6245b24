# shellcheck shell=bash
# source.sh HOST PORT [proxied]: prints the answer of a server that runs source.pl. With `proxied`, the connection
# begins with a PROXY header that names the client 203.0.113.7:4711, like a connection of a load balancer.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
reachable "$1" "$2"
exec 3<>"/dev/tcp/$1/$2"
if [ "${3:-}" = proxied ]; then
  printf '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\xc6\x33\x64\x01\x12\x67\x01\xbb' >&3
fi
cat <&3

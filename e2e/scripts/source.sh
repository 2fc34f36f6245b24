# shellcheck shell=bash
# source.sh HOST PORT [proxied]: prints what a server that runs source.pl says of this client; `proxied`: behind a header
# that names 203.0.113.7:4711, as a load balancer would write it.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
reachable "$1" "$2"
exec 3<>"/dev/tcp/$1/$2"
if [ "${3:-}" = proxied ]; then
  printf '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\xc6\x33\x64\x01\x12\x67\x01\xbb' >&3
fi
cat <&3

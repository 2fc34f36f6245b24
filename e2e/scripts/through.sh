# shellcheck shell=bash
# through.sh HOST PORT [PROTOCOL USER PASSWORD TARGET TARGET_PORT]...: requests one target after the other from the
# proxy at HOST:PORT. USER `-` means no user. The output is the output of through.pl, with PROTOCOL and TARGET_PORT at
# the beginning of each line.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
host=$1 port=$2
shift 2
reachable "$host" "$port"
while [ $# -gt 0 ]; do
  perl /scripts/through.pl "$1" "$host" "$port" "${2#-}" "$3" "$4" "$5" | sed "s/^/$1 $5: /"
  shift 5
done

# shellcheck shell=bash
# round-trips.sh HOST PORT COUNT: opens one connection to an echo server and prints COUNT round-trip times of one byte,
# in microseconds, one per line. The first round trip is not printed, because it includes the time in which the exit
# dials the target.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
reachable "$1" "$2"
exec 3<>"/dev/tcp/$1/$2"
for ((i = 0; i <= $3; i++)); do
  began=${EPOCHREALTIME/./}
  printf x >&3
  IFS= read -r -t 30 -N 1 -u 3 byte
  [ "$byte" = x ]
  [ "$i" = 0 ] || echo $((${EPOCHREALTIME/./} - began))
done

# shellcheck shell=bash
# revoked.sh HOST PORT SECONDS: holds a stream with traffic to an echo server open through PORT. The stream must end
# within SECONDS. Then PORT must not accept a new stream.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
# With this trap, a write to an ended stream returns an error. Without the trap, SIGPIPE would end this script.
trap '' PIPE
reachable "$1" "$2"
exec 3<>"/dev/tcp/$1/$2"
ping_held() {
  local byte="" status=0
  printf x >&3 || return
  IFS= read -r -t 30 -N 1 -u 3 byte || status=$?
  [ $status -le 128 ] || { echo "the held stream returned no byte for 30 s, and did not end"; exit 1; }
  [ "$byte" = x ]
}
ping_held
echo "held stream is open"
while ping_held 2>/dev/null; do
  [ $SECONDS -lt "$3" ] || { echo "the held stream is still open after $3 s"; exit 1; }
  sleep 0.5
done
echo "held stream is cut"
# shellcheck disable=SC2016  # expanded by the inner shell
if timeout 3 bash -c 'exec 4<>"/dev/tcp/$0/$1"; printf y >&4; IFS= read -r -N 1 -u 4 byte; [ "$byte" = y ]' "$1" "$2" 2>/dev/null; then
  echo "port $2 still takes new streams"
  exit 1
fi
echo "port $2 takes no new stream"

# shellcheck shell=bash
# new-port.sh HOST OPEN_PORT NEW_PORT SECONDS: holds a stream with traffic to an echo server open through OPEN_PORT,
# until a connection to NEW_PORT also returns an echo. Then the script uses the held stream once more.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
reachable "$1" "$2"
ping_held() {
  printf x >&3
  if ! IFS= read -r -t 30 -N 1 -u 3 byte || [ "$byte" != x ]; then
    echo "the held stream broke after $SECONDS s"
    exit 1
  fi
}
exec 3<>"/dev/tcp/$1/$2"
ping_held
echo "held stream is open"
# shellcheck disable=SC2016  # expanded by the inner shell
until timeout 3 bash -c 'exec 4<>"/dev/tcp/$0/$1"; printf y >&4; IFS= read -r -N 1 -u 4 byte; [ "$byte" = y ]' "$1" "$3" 2>/dev/null; do
  ping_held
  [ $SECONDS -lt "$4" ] || { echo "port $3 does not answer after $4 s"; exit 1; }
  sleep 0.5
done
echo "port $3 answers after $SECONDS s"
for _ in 1 2 3 4 5; do ping_held; done
echo "held stream is alive"

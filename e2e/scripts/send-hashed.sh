# shellcheck shell=bash
# send-hashed.sh HOST PORT BYTES: sends random bytes to a server that answers with their SHA-256, and compares the
# hashes.
set -euo pipefail
# shellcheck source=e2e/scripts/reachable.sh
source /scripts/reachable.sh
reachable "$1" "$2"
answer=$(head -c "$3" /dev/urandom | tee >(sha256sum >/tmp/sent) | perl /scripts/send.pl "$1" "$2")
# The process substitution may end after the pipe, so wait until its file has a line.
until [ -s /tmp/sent ]; do sleep 0.1; done
echo "sent     $3 bytes, SHA-256 $(cut -d' ' -f1 /tmp/sent)"
echo "received SHA-256 ${answer%% *}"
[ "${answer%% *}" = "$(cut -d' ' -f1 /tmp/sent)" ]

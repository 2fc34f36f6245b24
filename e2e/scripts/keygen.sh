# shellcheck shell=bash
# keygen.sh: prints the public key of a new pair, then the private one.
set -euo pipefail
/usr/local/bin/muxgate keygen /tmp/key
cat /tmp/key

# shellcheck shell=bash
# keygen.sh: generates a key pair, and prints the public key, then the private key.
set -euo pipefail
/usr/local/bin/muxgate keygen /tmp/key
cat /tmp/key
